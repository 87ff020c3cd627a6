-- 026_why_not: why a search does not return a chunk.
-- Module: insight.
-- Adds: type found_place, function explain_missing_knowledge_chunk and those that it calls.
-- Locks nothing that exists.
-- Written from supabase/schemas/modules/insight/26_why_not.sql by `make baseline`: edit that file.

-- Where a chunk stands in the list that match_offset pages through; place is null if it is not in
-- it. page_score: the score of the last hit on the page that was asked for.
create type knowledge_internal.found_place as (
  chunk_id uuid,
  place bigint,
  score double precision,
  page_score double precision,
  vector_rank bigint,
  text_rank bigint,
  similarity double precision,
  text_score double precision
);

-- The rows that a search with these arguments may return.
create function knowledge_internal.given_scope(given knowledge_internal.search_arguments)
returns knowledge_internal.row_scope
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return knowledge_internal.row_scope(
    knowledge_internal.compile_filter(
      given.filters, given.filter_type, given.date_from, given.date_to, given.public_only
    ),
    given.viewer_id, given.viewer_groups, given.public_only
  );
end
$$;

-- The first of the chunks in the whole list of a search.
create function knowledge_internal.place_of(
  arguments knowledge_internal.search_arguments, chunk_ids uuid[]
) returns knowledge_internal.found_place
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  last_offset constant integer := 1000;
  last_on_page constant integer := arguments.match_offset + arguments.match_count;
  found knowledge_internal.found_place;
  hit record;
  total bigint := 0;
begin
  -- A page as large as the pool leaves the pool, and so the list, as it is.
  arguments.match_count := greatest(arguments.pool_size, arguments.match_count);
  arguments.neighbor_window := 0;
  arguments.snippet := false;
  for skipped in 0 .. last_offset by arguments.match_count loop
    arguments.match_offset := skipped;
    for hit in
      select listed.*
        from knowledge_internal.search(arguments) with ordinality as listed
       order by listed.ordinality
    loop
      total := hit.total_count;
      if skipped + hit.ordinality = last_on_page then
        found.page_score := hit.rrf_score;
      end if;
      if hit.id = any (chunk_ids) then
        found.chunk_id := hit.id;
        found.place := skipped + hit.ordinality;
        found.score := hit.rrf_score;
        found.vector_rank := hit.vector_rank;
        found.text_rank := hit.text_rank;
        found.similarity := hit.similarity;
        found.text_score := hit.text_score;
        return found;
      end if;
    end loop;
    exit when total <= skipped + arguments.match_count;
  end loop;
  return found;
end
$$;

-- Whether an active chunk passes arguments that restrict the rows, given as an object. The
-- conditions are those of the search itself.
create function knowledge_internal.passes_restriction(
  restriction jsonb, chunk_id uuid, document_id uuid
) returns boolean
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  filters jsonb := restriction -> 'filters';
begin
  -- The index on document_id finds the chunk.
  if jsonb_typeof(filters) is distinct from 'object' then
    filters := coalesce(filters, '[]') || jsonb_build_object(
      'field', 'document_id',
      'op', case when document_id is null then 'exists' else 'eq' end,
      'value', coalesce(to_jsonb(document_id), 'false')
    );
  elsif not filters ? 'document_id' then
    filters := filters || jsonb_build_object('document_id', document_id);
  end if;
  return exists (
    select
      from knowledge_internal.matching_chunks(
             jsonb_populate_record(
               knowledge_internal.given_arguments('{}'),
               restriction || jsonb_build_object('filters', filters)
             ),
             false
           ) as passing
     where passing.id = chunk_id
  );
end
$$;

-- The arguments of a search that restrict its rows: each alone, as an object of arguments; the
-- change of arguments with which the chunk passes it (null: none does); and what the chunk has
-- instead. A condition in filters has no change of its own: it is left out.
create function knowledge_internal.restrictions(
  arguments knowledge_internal.search_arguments, chunk public.knowledge_chunks
) returns table (cause text, argument text, restriction jsonb, change jsonb, reason text)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  given constant jsonb := to_jsonb(arguments) - 'query_embedding';
  document_date constant jsonb := coalesce(to_jsonb(chunk.document_date), 'null');
begin
  return query
  select 'filter', format('filters[%s]', listed.place - 1),
         jsonb_build_object('filters', jsonb_build_array(listed.condition)),
         '{}'::jsonb, format('it does not meet %s', listed.condition)
    from jsonb_array_elements(
           case jsonb_typeof(arguments.filters) when 'array' then arguments.filters else '[]' end
         ) with ordinality as listed (condition, place)
  union all
  select 'filter', 'filters.' || entry.key,
         jsonb_build_object('filters', jsonb_build_object(entry.key, entry.value)),
         '{}', format('its %s is not %s', entry.key, entry.value)
    from jsonb_each(
           case jsonb_typeof(arguments.filters) when 'object' then arguments.filters else '{}' end
         ) as entry
  union all
  select restricting.*
    from (
      values
        (
          'filter', 'filter_type', jsonb_build_object('filter_type', arguments.filter_type),
          '{"filter_type": null}'::jsonb, format('its knowledge_type is %s', chunk.knowledge_type)
        ),
        (
          'date', 'date_from', jsonb_build_object('date_from', arguments.date_from),
          jsonb_build_object('date_from', document_date),
          format('its document_date is %s', coalesce(chunk.document_date::text, 'missing'))
        ),
        (
          'date', 'date_to', jsonb_build_object('date_to', arguments.date_to),
          jsonb_build_object('date_to', document_date),
          format('its document_date is %s', coalesce(chunk.document_date::text, 'missing'))
        ),
        (
          'collection', 'collections', jsonb_build_object('collections', arguments.collections),
          jsonb_build_object('collections', arguments.collections || chunk.collection),
          format('its collection is %s', chunk.collection)
        ),
        (
          'permission', 'public_only', jsonb_build_object('public_only', arguments.public_only),
          '{"public_only": false}', 'it is private'
        ),
        (
          'permission', 'viewer_id',
          jsonb_build_object(
            'viewer_id', arguments.viewer_id, 'viewer_groups', arguments.viewer_groups
          ),
          case
            when chunk.allowed_groups is not null then jsonb_build_object(
              'viewer_groups', coalesce(arguments.viewer_groups, '{}') || chunk.allowed_groups[1]
            )
            when chunk.owner_id is not null
              then jsonb_build_object('viewer_id', chunk.owner_id)
          end,
          case
            when coalesce(chunk.allowed_groups::text, chunk.owner_id::text) is null
              then 'it is private, and it has no owner and no allowed_groups'
            else format(
              'it is private to %s',
              concat_ws(
                ' and ', 'its owner ' || chunk.owner_id,
                'the groups ' || array_to_string(chunk.allowed_groups, ', ')
              )
            )
          end
        )
    ) as restricting (cause, argument, restriction, change, reason)
   where jsonb_strip_nulls(restricting.restriction) <> '{}'
     and restricting.restriction <> '{"public_only": false}';
end
$$;

-- The words and phrases because of which a chunk is no hit: those that it has and the query
-- excludes (excluded_words), or that it lacks and the query requires (required_words), and the
-- change with which they do not count. Null without any.
create function knowledge_internal.changed_words(
  query_text text, search_mode text, content_tsv tsvector, out cause text, out parts text[],
  out change jsonb
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- Postgres sends a NOTICE for a query of stop words only.
set client_min_messages = warning
set standard_conforming_strings = on as $$
declare
  words_read constant integer := 512;
  characters_read constant integer := 4096;
  configurations constant regconfig[] := knowledge_internal.query_configurations();
  operands constant knowledge_internal.query_operand[] := knowledge_internal.query_operands(
    left(translate(query_text, '“”„‟«»', '""""""'), characters_read), search_mode, words_read
  );
  having_excluded text[];
  lacking text[];
begin
  select array_agg(operand.source order by operand.place) filter (
           where operand.is_excluded
             and numnode(conditions.excluded) > 0
             and content_tsv @@ conditions.excluded
         ),
         array_agg(operand.source order by operand.place) filter (
           where operand.is_required
             and not operand.is_excluded
             and numnode(conditions.required) > 0
             and not content_tsv @@ conditions.required
         )
    into having_excluded, lacking
    from unnest(operands) with ordinality as operand (
           source, is_phrase, is_required, is_excluded, alternatives, place
         )
   cross join lateral knowledge_internal.operand_conditions(
           array[
             row(
               operand.source, operand.is_phrase, operand.is_required, operand.is_excluded,
               operand.alternatives
             )::knowledge_internal.query_operand
           ],
           configurations, '{}'
         ) as conditions;
  if having_excluded is null and lacking is null then
    return;
  end if;
  cause := case when lacking is null then 'excluded_words' else 'required_words' end;
  parts := having_excluded || lacking;
  if search_mode <> 'websearch' then
    change := '{"search_mode": "websearch"}';
    return;
  end if;
  change := jsonb_build_object(
    'query_text',
    (
      select string_agg(
               -- Before an alternative of the operand before it.
               case when kept.alternatives = kept.alternatives_before then 'or ' else '' end
                 || case when kept.source = any (lacking) then btrim(kept.source, '"')
                      else kept.source end,
               ' ' order by kept.place
             )
        from (
          select operand.*,
                 lag(operand.alternatives) over (order by operand.place) as alternatives_before
            from unnest(operands) with ordinality as operand (
                   source, is_phrase, is_required, is_excluded, alternatives, place
                 )
           where (operand.source = any (having_excluded)) is not true
        ) as kept
    )
  );
end
$$;

-- The word of a text that the fewest chunks have; null for a text without words.
create function knowledge_internal.rarest_word(heading text, content text) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  longest_beginning constant integer := 2000; -- characters
  analysis knowledge_internal.query_analysis;
begin
  analysis := knowledge_internal.analyse_query(
    (
      select string_agg(word.found, ' ')
        from knowledge_internal.words_of(heading, left(content, longest_beginning)) as word (found)
    ),
    'simple'
  );
  return (
    select typed.word
      from unnest(analysis.words, analysis.word_queries) as typed (word, query)
      join unnest(analysis.lexeme_queries, analysis.document_frequencies)
             as listed (query, document_frequency)
        on typed.query @> listed.query
     order by listed.document_frequency, length(typed.word) desc, typed.word
     limit 1
  );
end
$$;

-- The rank and score of a chunk in the text leg among the chunks that match. Only those are scored
-- that the bounds of BM25 put neither before nor behind it.
create function knowledge_internal.counted_place(
  matching uuid[], chunk_id uuid, analysis knowledge_internal.query_analysis
) returns knowledge_internal.found_place
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- A sequential scan would read the text of every chunk, once for each word.
set enable_seqscan = off as $$
declare
  margin constant float8 := 0.000001; -- for rounding
  most_weight constant float8 := knowledge_internal.bm25_k1() + 1;
  -- The length factor is linear in the length.
  shortest constant float8 := knowledge_internal.bm25_length_factor(0, analysis.mean_length);
  per_word constant float8 :=
    knowledge_internal.bm25_length_factor(1, analysis.mean_length) - shortest;
  is_one_reading constant boolean := cardinality(analysis.readings) = (
    select count(distinct listed.reading) from unnest(analysis.readings) as listed (reading)
  );
  most_bonus constant float8 :=
    coalesce((analysis.bonuses).identifier_bonus, 0) + coalesce(
      (
        select sum(listed.bonus)
          from unnest((analysis.bonuses).phrase_bonuses) as listed (bonus)
      ),
      0
    );
  score constant float8 := (
    knowledge_internal.exact_scores(
      array[chunk_id], 1, analysis.lexemes, analysis.scored_weights, analysis.readings,
      analysis.mean_length, analysis.bonuses
    )
  ).scores[1];
  better bigint;
  others uuid[];
  found knowledge_internal.found_place;
begin
  -- A word counts least if it occurs once, and always less than most_weight. These bounds need
  -- only the index and the length; the texts of most chunks are not read.
  select count(*) filter (where bounds.least > score * (1 + margin)),
         array_agg(bounds.id) filter (
           where bounds.least <= score * (1 + margin) and bounds.most >= score * (1 - margin)
         )
    into better, others
    from (
      select having_word.id, sum(word.weight) * most_weight + most_bonus as most,
             case when is_one_reading then sum(word.weight) else max(word.weight) end
               * most_weight / (1 + min(having_word.length_factor)) as least
        from unnest(analysis.lexeme_queries, analysis.scored_weights) as word (query, weight)
       cross join lateral (
               select stored.id, shortest + per_word * stored.text_length as length_factor
                 from public.knowledge_chunks as stored
                where stored.content_tsv @@ word.query and stored.status = 'active'
               offset 0
             ) as having_word
       group by having_word.id
    ) as bounds
    join unnest(matching) as allowed (id) using (id);
  found.text_score := score;
  found.text_rank := better + array_position(
    (
      knowledge_internal.exact_scores(
        others, cardinality(others), analysis.lexemes, analysis.scored_weights,
        analysis.readings, analysis.mean_length, analysis.bonuses
      )
    ).ids, chunk_id
  );
  return found;
end
$$;

-- The ranks and scores of a chunk in the two legs alone, without threshold, among the chunks that
-- the arguments allow. A rank beyond 1,000 is counted if there are at most 100,000 chunks.
create function knowledge_internal.leg_ranks(
  arguments knowledge_internal.search_arguments, chunk public.knowledge_chunks
) returns knowledge_internal.found_place
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  largest_pool constant integer := 1000;
  most_counted constant integer := 100000; -- chunks
  is_countable constant boolean := (
    select stored.estimated_rows <= most_counted from knowledge_internal.chunk_table() as stored
  );
  analysis knowledge_internal.query_analysis;
  matching uuid[];
  alone knowledge_internal.search_arguments := arguments;
  ranks knowledge_internal.found_place;
  found knowledge_internal.found_place;
begin
  alone.fusion := 'rrf';
  alone.vector_weight := 1;
  alone.text_weight := 1;
  alone.match_threshold := -1;
  alone.pool_size := largest_pool;
  alone.match_count := largest_pool;
  alone.match_offset := 0;
  alone.one_per_document := false;
  alone.recency_half_life := null;
  if arguments.collections is not null then
    alone.collections := array[chunk.collection];
  end if;

  if arguments.query_embedding is not null and chunk.embedding is not null then
    alone.query_text := null;
    alone.formulations := null;
    found := knowledge_internal.place_of(alone, array[chunk.id]);
    ranks.vector_rank := found.vector_rank;
    ranks.similarity :=
      1 - (chunk.embedding operator(extensions.<=>) arguments.query_embedding);
    if ranks.vector_rank is null and is_countable then
      alone.match_threshold := ranks.similarity;
      ranks.vector_rank := (
        select count(*) from knowledge_internal.matching_chunks(alone, true)
      );
    end if;
  end if;
  if arguments.query_text ~ '\S' then
    alone.query_embedding := null;
    alone.query_text := arguments.query_text;
    alone.formulations := null;
    found := knowledge_internal.place_of(alone, array[chunk.id]);
    ranks.text_rank := found.text_rank;
    ranks.text_score := found.text_score;
    if found.text_rank is null and is_countable then
      analysis := knowledge_internal.analyse_query(
        arguments.query_text, arguments.search_mode, arguments.collections, arguments.prefix_last,
        knowledge_internal.given_scope(arguments)
      );
      matching := array(
        select allowed.id from knowledge_internal.matching_chunks(alone, true) as allowed
      );
      if chunk.id = any (matching) then
        found := knowledge_internal.counted_place(matching, chunk.id, analysis);
        ranks.text_rank := found.text_rank;
        ranks.text_score := found.text_score;
      end if;
    end if;
  end if;
  return ranks;
end
$$;

-- Why neither leg returns a chunk that passes the restrictions, and the changes of arguments with
-- which one of them should.
create function knowledge_internal.leg_causes(
  arguments knowledge_internal.search_arguments, chunk public.knowledge_chunks,
  ranks knowledge_internal.found_place, out causes jsonb, out options jsonb[]
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  largest_pool constant integer := 1000;
  pool constant integer := greatest(arguments.pool_size, arguments.match_count);
  option jsonb := '{}';
  words record;
  is_matching boolean;
  word text;
begin
  causes := '[]';
  if arguments.query_embedding is not null and chunk.embedding is null then
    causes := causes || jsonb_build_object(
      'cause', 'no_embedding', 'leg', 'vector', 'reason', 'it has no embedding'
    );
  elsif arguments.query_embedding is not null then
    if ranks.similarity < arguments.match_threshold then
      option := jsonb_build_object(
        'match_threshold', greatest(-1, floor(ranks.similarity * 100) / 100)
      );
      causes := causes || jsonb_build_object(
        'cause', 'threshold', 'leg', 'vector', 'argument', 'match_threshold',
        'reason', format('its similarity is %s', round(ranks.similarity::numeric, 4))
      );
    end if;
    if (ranks.vector_rank <= pool) is not true then
      option := option || jsonb_build_object('pool_size', ranks.vector_rank);
      causes := causes || jsonb_build_object(
        'cause', 'pool', 'leg', 'vector', 'argument', 'pool_size',
        'reason', format('its rank is %s', coalesce(ranks.vector_rank::text, 'above 1000'))
      );
    end if;
    if ranks.vector_rank <= largest_pool then
      options := array[option];
    end if;
  end if;

  if arguments.query_text ~ '\S' then
    option := '{}';
    if ranks.text_rank is null then
      words := knowledge_internal.changed_words(
        arguments.query_text, arguments.search_mode, chunk.content_tsv
      );
      if words.cause is not null then
        option := words.change;
        arguments := jsonb_populate_record(arguments, option);
        causes := causes || jsonb_build_object(
          'cause', words.cause, 'leg', 'text', 'argument', 'query_text', 'parts', words.parts,
          'reason', format(
            'it %s: %s',
            case words.cause
              when 'excluded_words' then 'has what is excluded' else 'lacks what is required'
            end,
            array_to_string(words.parts, ', ')
          )
        );
      end if;
      is_matching := chunk.content_tsv @@ (
        knowledge_internal.analyse_query(
          arguments.query_text, arguments.search_mode, arguments.collections,
          arguments.prefix_last, knowledge_internal.given_scope(arguments)
        )
      ).matching_query;
      if is_matching is not true then
        word := knowledge_internal.rarest_word(chunk.heading, chunk.content);
        option := option
          || jsonb_build_object('query_text', concat_ws(' ', arguments.query_text, word));
        causes := causes || jsonb_build_object(
          'cause', 'no_words', 'leg', 'text', 'argument', 'query_text',
          'reason', 'it has no word of the query'
        );
      end if;
      if option <> '{}' then
        arguments.query_embedding := null;
        ranks := knowledge_internal.leg_ranks(jsonb_populate_record(arguments, option), chunk);
      end if;
    end if;
    if (ranks.text_rank <= pool) is not true and (option = '{}' or ranks.text_rank is not null) then
      option := option || jsonb_build_object('pool_size', ranks.text_rank);
      causes := causes || jsonb_build_object(
        'cause', 'pool', 'leg', 'text', 'argument', 'pool_size',
        'reason', format('its rank is %s', coalesce(ranks.text_rank::text, 'above 1000'))
      );
    end if;
    if ranks.text_rank <= largest_pool then
      -- With the larger pool, both legs have it.
      if options[1] ? 'pool_size' and option ? 'pool_size' then
        options := options || (
          options[1] || option || jsonb_build_object(
            'pool_size', greatest(options[1] -> 'pool_size', option -> 'pool_size')
          )
        );
      end if;
      options := options || option;
    end if;
  end if;
end
$$;

-- The change, with what brings the chunk onto the page, and its place in a search with that change;
-- null if no change of the page does.
create function knowledge_internal.placed_change(
  arguments knowledge_internal.search_arguments, chunk_id uuid, inout change jsonb,
  out place bigint
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  largest constant integer := 1000; -- of pool_size and match_count
  most_attempts constant integer := 3;
  found knowledge_internal.found_place;
  extended jsonb;
begin
  found := knowledge_internal.place_of(
    jsonb_populate_record(arguments, change), array[chunk_id]
  );
  if found.place is null and change ? 'pool_size' then
    -- The index is approximate, so a pool that is just large enough may miss the chunk.
    change := change || jsonb_build_object(
      'pool_size', least(largest, 2 * (change -> 'pool_size')::integer)
    );
    found := knowledge_internal.place_of(
      jsonb_populate_record(arguments, change), array[chunk_id]
    );
  end if;
  place := found.place;
  if place is null then
    change := null;
    return;
  end if;
  if place <= arguments.match_offset then
    change := change || jsonb_build_object(
      'match_offset', (place - 1) / arguments.match_count * arguments.match_count
    );
    return;
  end if;
  if place > arguments.match_offset + arguments.match_count
     and arguments.recency_half_life is not null
  then
    extended := change || '{"recency_half_life": null}';
    found := knowledge_internal.place_of(
      jsonb_populate_record(arguments, extended), array[chunk_id]
    );
    if found.place <= arguments.match_offset + arguments.match_count then
      change := extended;
      place := found.place;
      return;
    end if;
  end if;

  -- A page that is larger than the pool makes the pool larger, which moves the chunk.
  extended := change;
  found.place := place;
  for attempt in 1 .. most_attempts loop
    exit when found.place is null
      or found.place <= arguments.match_offset
           + coalesce((extended -> 'match_count')::integer, arguments.match_count)
      or found.place - arguments.match_offset > largest;
    extended := extended
      || jsonb_build_object('match_count', found.place - arguments.match_offset);
    found := knowledge_internal.place_of(
      jsonb_populate_record(arguments, extended), array[chunk_id]
    );
  end loop;
  if found.place <= arguments.match_offset
       + coalesce((extended -> 'match_count')::integer, arguments.match_count)
  then
    change := extended;
    place := found.place;
    if (change -> 'match_count')::integer >= (change -> 'pool_size')::integer then
      change := change - 'pool_size';
    end if;
  elsif place - 1 <= largest then
    change := change || jsonb_build_object('match_offset', place - 1);
  else
    change := null;
  end if;
end
$$;

-- Of the chunks of a document, the one that is nearest to the query.
create function knowledge_internal.nearest_chunk(
  candidates uuid[], arguments knowledge_internal.search_arguments
) returns public.knowledge_chunks
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  matching_query constant tsquery := (
    knowledge_internal.analyse_query(
      arguments.query_text, arguments.search_mode, arguments.collections, arguments.prefix_last,
      knowledge_internal.given_scope(arguments)
    )
  ).matching_query;
  nearest public.knowledge_chunks;
begin
  select chunk.* into nearest
    from public.knowledge_chunks as chunk
   where chunk.id = any (candidates)
   order by chunk.status <> 'active',
            chunk.embedding operator(extensions.<=>) arguments.query_embedding,
            (chunk.content_tsv @@ matching_query) is not true,
            chunk.chunk_index, chunk.id
   limit 1;
  return nearest;
end
$$;

-- Of the changes of arguments, tried one after the other, the smallest with which the chunk is on
-- the page; else a filter on its document. Null if the chunk is not on the page with any.
create function knowledge_internal.smallest_change(
  arguments knowledge_internal.search_arguments, chunk public.knowledge_chunks, options jsonb[],
  out change jsonb, out place bigint
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  select placed.change, placed.place
    into change, place
    from unnest(options) with ordinality as option (change, number)
   cross join lateral knowledge_internal.placed_change(arguments, chunk.id, option.change) as placed
   where placed.change is not null
   order by (select count(*) from jsonb_object_keys(placed.change)),
            coalesce((placed.change -> 'match_count')::integer, arguments.match_count)
              + coalesce((placed.change -> 'pool_size')::integer, arguments.pool_size),
            option.number
   limit 1;
  if change is null and chunk.document_id is not null then
    -- No pool is large enough for the rank, so other chunks have to be left out.
    select placed.change, placed.place
      into change, place
      from knowledge_internal.placed_change(
             arguments, chunk.id,
             jsonb_build_object(
               'filters',
               case jsonb_typeof(arguments.filters)
                 when 'object'
                   then arguments.filters || jsonb_build_object('document_id', chunk.document_id)
                 else coalesce(nullif(arguments.filters, 'null'), '[]') || jsonb_build_object(
                   'field', 'document_id', 'op', 'eq', 'value', chunk.document_id
                 )
               end
             )
           ) as placed;
  end if;
end
$$;

-- The result of explain_missing_knowledge_chunk.
create function knowledge_internal.missing_explanation(
  arguments knowledge_internal.search_arguments, chunk_id uuid, document_key text
) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  candidates uuid[];
  chunk public.knowledge_chunks;
  asked knowledge_internal.search_arguments := arguments;
  question knowledge_internal.search_question;
  given knowledge_internal.found_place;
  found knowledge_internal.found_place;
  ranks knowledge_internal.found_place;
  restricting record;
  legs record;
  best record;
  failing jsonb := '[]';
  causes jsonb := '[]';
  change jsonb := '{}'; -- of arguments, by which the chunk passes the restrictions
  row_change jsonb;
  is_found boolean;
begin
  if num_nonnulls(chunk_id, document_key) <> 1 then
    raise exception 'exactly one of chunk_id and document_key must be given'
      using errcode = '22023';
  end if;
  select null::jsonb as change, null::bigint as place into best;
  candidates := array(
    select stored.id from public.knowledge_chunks as stored where stored.id = chunk_id
    union all
    select stored.id
      from public.knowledge_documents as document
      join public.knowledge_chunks as stored on stored.document_id = document.id
     where document.external_key = document_key
  );
  given := knowledge_internal.place_of(arguments, candidates);
  is_found := coalesce(
    given.place > arguments.match_offset
      and given.place <= arguments.match_offset + arguments.match_count,
    false
  );
  -- What each leg is asked: null for a leg that is not run.
  question := (knowledge_internal.planned_search(arguments)).questions[1];
  asked.query_embedding := question.embedding;
  asked.query_text := question.query_text;
  chunk := knowledge_internal.nearest_chunk(
    case when given.chunk_id is null then candidates else array[given.chunk_id] end, asked
  );

  if chunk.id is null then
    causes := jsonb_build_array(
      jsonb_build_object('cause', 'not_stored', 'reason', 'no chunk is stored under this name')
    );
  elsif chunk.status <> 'active' then
    causes := jsonb_build_array(
      jsonb_build_object('cause', 'status', 'reason', format('its status is %s', chunk.status))
    );
    row_change := '{"status": "active"}';
  elsif not is_found and given.place is null then
    for restricting in
      select listed.* from knowledge_internal.restrictions(arguments, chunk) as listed
    loop
      continue when knowledge_internal.passes_restriction(
        restricting.restriction, chunk.id, chunk.document_id
      );
      causes := causes || jsonb_build_object(
        'cause', restricting.cause, 'argument', restricting.argument, 'reason', restricting.reason
      );
      failing := failing || coalesce(restricting.restriction -> 'filters', '[]');
      if restricting.change is null then
        row_change := '{"visibility": "public"}';
      end if;
      change := change || coalesce(restricting.change, '{}');
    end loop;
    if failing <> '[]' then
      change := change || jsonb_build_object(
        'filters', knowledge_internal.without_conditions(arguments.filters, failing)
      );
    end if;
  end if;

  if not is_found and row_change is null and chunk.id is not null then
    arguments := jsonb_populate_record(arguments, change);
    asked := jsonb_populate_record(asked, change);
    ranks := knowledge_internal.leg_ranks(asked, chunk);
    -- With the same arguments, it is where it was.
    found := case
      when change = '{}' then given
      else knowledge_internal.place_of(arguments, array[chunk.id])
    end;
    if found.place is null and arguments.one_per_document then
      best := knowledge_internal.placed_change(
        arguments, chunk.id, '{"one_per_document": false}'
      );
      if best.change is not null then
        causes := causes || jsonb_build_object(
          'cause', 'grouped', 'argument', 'one_per_document',
          'reason', 'its document shows another chunk'
        );
      end if;
    end if;
    if found.place is not null then
      best := knowledge_internal.smallest_change(arguments, chunk, array['{}'::jsonb]);
      causes := causes || knowledge_internal.page_cause(arguments, found, best.change);
    elsif causes -> -1 ->> 'cause' is distinct from 'grouped' then
      legs := knowledge_internal.leg_causes(asked, chunk, ranks);
      causes := causes || legs.causes;
      best := knowledge_internal.smallest_change(arguments, chunk, legs.options);
      if best.change is null and asked.query_embedding is not null and chunk.embedding is null then
        row_change := '{"embedding": "missing"}';
      end if;
    end if;
    change := change || best.change;
  elsif chunk.status = 'active' then
    ranks := knowledge_internal.leg_ranks(
      jsonb_populate_record(asked, change), chunk
    );
  end if;

  return jsonb_build_object(
    'is_found', is_found,
    'place', given.place,
    'chunk', (
      select jsonb_build_object(
               'id', chunk.id, 'document_key', document.external_key, 'title', document.title,
               'chunk_index', chunk.chunk_index, 'collection', chunk.collection,
               'status', chunk.status
             )
        from (select) as one
        left join public.knowledge_documents as document on document.id = chunk.document_id
       where chunk.id is not null
    ),
    'pool', greatest(arguments.pool_size, arguments.match_count),
    'vector', jsonb_build_object(
      'rank', ranks.vector_rank, 'similarity', ranks.similarity,
      'is_run', asked.query_embedding is not null
    ),
    'text', jsonb_build_object(
      'rank', ranks.text_rank, 'score', ranks.text_score, 'is_run', asked.query_text is not null
    ),
    'causes', causes,
    'change', case
      when row_change is not null then jsonb_build_object(
        'arguments', change, 'row', row_change, 'is_verified', false, 'place', null
      )
      when best.change is not null then jsonb_build_object(
        'arguments', change, 'row', null, 'is_verified', true, 'place', best.place
      )
    end
  );
end
$$;

-- Filters without these conditions; null if none is left.
create function knowledge_internal.without_conditions(filters jsonb, failing jsonb) returns jsonb
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  if jsonb_typeof(filters) = 'array' then
    return (
      select jsonb_agg(listed.condition order by listed.place)
        from jsonb_array_elements(filters) with ordinality as listed (condition, place)
       where not knowledge_internal.is_listed(listed.condition, failing)
    );
  end if;
  return (
    select jsonb_object_agg(entry.key, entry.value)
      from jsonb_each(filters) as entry
     where not knowledge_internal.is_listed(jsonb_build_object(entry.key, entry.value), failing)
  );
end
$$;

-- Why a chunk that is in the list of a search is not on its page; an empty array if it is.
create function knowledge_internal.page_cause(
  arguments knowledge_internal.search_arguments, found knowledge_internal.found_place, change jsonb
) returns jsonb
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  if found.place <= arguments.match_offset then
    return jsonb_build_object(
      'cause', 'earlier_page', 'argument', 'match_offset',
      'reason', format('its place is %s', found.place)
    );
  elsif found.place <= arguments.match_offset + arguments.match_count then
    return '[]'; -- the restrictions alone excluded it
  end if;
  return jsonb_build_object(
    'cause', case when change ? 'recency_half_life' then 'recency' else 'fusion' end,
    'argument', case when change ? 'recency_half_life' then 'recency_half_life'
      else 'match_count' end,
    'reason', format(
      'its place is %s: its score is %s, that of the last hit on the page %s',
      found.place, found.score, found.page_score
    )
  );
end
$$;

create function public.explain_missing_knowledge_chunk(
  search jsonb, chunk_id uuid default null, document_key text default null
) returns jsonb
-- definer: service_role has no rights on the internal schema.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
  return knowledge_internal.missing_explanation(
    knowledge_internal.given_arguments(search), chunk_id, document_key
  );
end
$$;

comment on function public.explain_missing_knowledge_chunk(jsonb, uuid, text) is
  'Why hybrid_search_knowledge_chunks does not return a chunk, or a document (the chunk of it that '
  'is nearest to the query), as one JSON object. search: its arguments as an object. is_found: it '
  'is on the page; place: in the whole list. vector and text: rank and score in each leg alone, '
  'without threshold and beyond the pool. causes: each with the argument and the reason. change: '
  'the arguments with which the search returns it, found by searching (is_verified, place), or '
  'what must change in its row. It searches up to about twenty times. It describes rows that a '
  'viewer may not see, so only service_role may call it. Raises 22023 as the search does, for an '
  'unknown name, and unless exactly one of chunk_id and document_key is given.';
revoke all on function public.explain_missing_knowledge_chunk(jsonb, uuid, text)
  from public, anon, authenticated;
grant execute on function public.explain_missing_knowledge_chunk(jsonb, uuid, text)
  to service_role;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
