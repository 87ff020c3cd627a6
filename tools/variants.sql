-- 011_search_arguments: what repeats the arguments of the search.
-- Adds: type search_arguments, functions default_search_arguments, search, check_cost,
-- search_my_knowledge_chunks, check_visitor_limits, search_public_knowledge_chunks,
-- explain_hybrid_search, estimate_hybrid_search, explain_missing_knowledge_chunk,
-- sampled_collections, visible_conditions, present_conditions, has_matching_chunk, compared_rows,
-- drawn_rows, nearest_rows, rated_rows, with_found_rows, common_search, visible_words,
-- matching_chunks, count_matching_knowledge_chunks, facet_knowledge_chunks,
-- facet_my_knowledge_chunks, pending_embeddings, count_pending_knowledge_embeddings,
-- count_my_pending_knowledge_embeddings, read_knowledge_question, knowledge_candidates,
-- fuse_knowledge_candidates, knowledge_candidate_hits, candidates, fused_candidates,
-- candidate_hits.
-- Locks nothing that exists.

-- Written by `make variants` from 09_hybrid_search.sql and tools/variants.sql: edit those two.

create type knowledge_internal.search_arguments as (
  @name @type,
);

comment on type knowledge_internal.search_arguments is
  'The arguments of hybrid_search_knowledge_chunks.';

create function knowledge_internal.default_search_arguments()
returns knowledge_internal.search_arguments
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.@name := @default;
  return arguments;
end
$$;

comment on function knowledge_internal.default_search_arguments() is
  'The defaults of hybrid_search_knowledge_chunks.';

create function knowledge_internal.search(arguments knowledge_internal.search_arguments)
returns setof public.knowledge_search_hit
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  return query
  select hit.*
    from public.hybrid_search_knowledge_chunks(
           @name => arguments.@name,
         ) as hit;
end
$$;

comment on function knowledge_internal.search(knowledge_internal.search_arguments) is
  'Calls hybrid_search_knowledge_chunks.';

create function knowledge_internal.check_cost(
  arguments knowledge_internal.search_arguments,
  most_candidates integer default 2500,
  longest_texts integer default 8192
)
returns void
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  characters_read constant integer := 4096; -- of each question
  formulations constant jsonb := case jsonb_typeof(arguments.formulations)
    when 'array' then arguments.formulations
    else '[]'
  end;
  lists constant bigint := (1 + jsonb_array_length(formulations))
    * greatest(cardinality(arguments.collections), 1);
  characters constant bigint := (
    select sum(length(left(asked.query_text, characters_read)))
      from (
        select arguments.query_text
        union all
        select formulation.asked ->> 'query_text'
          from jsonb_array_elements(formulations) as formulation (asked)
         where jsonb_typeof(formulation.asked) = 'object'
      ) as asked (query_text)
  );
begin
  perform knowledge_internal.check_range(
            'pool_size (at least match_count) times collections times questions',
            coalesce(lists * greatest(arguments.pool_size, arguments.match_count), 0), 0,
            most_candidates, format('at most %s', most_candidates)
          ),
          knowledge_internal.check_range(
            'query_text and those of formulations', coalesce(characters, 0), 0, longest_texts,
            format('at most %s characters together', longest_texts)
          );
end
$$;

comment on function knowledge_internal.check_cost is
  'Raises 22023 for a search of a user or visitor that could take long: by its candidates (each '
  'question has a list in each collection) or by the texts of its questions.';

create function public.search_my_knowledge_chunks(
  @name @type default @default, -- except viewer_id, viewer_groups
)
returns setof public.knowledge_search_hit
language plpgsql
stable
-- definer: a signed-in user may not read the tables of the search, nor call it with a viewer_id.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.viewer_id := knowledge_internal.signed_in_viewer('search_my_knowledge_chunks');
  arguments.viewer_groups := knowledge_internal.current_viewer_groups();
  arguments.@name := search_my_knowledge_chunks.@name; -- except viewer_id, viewer_groups
  perform knowledge_internal.check_cost(arguments);
  -- A user may not read the trace that explain_hybrid_search reads.
  perform set_config('knowledge_internal.tracing', 'off', true),
          set_config('knowledge_internal.recording', 'off', true),
          set_config('knowledge_internal.readings', '', true);
  return query select hit.* from knowledge_internal.search(arguments) as hit;
end
$$;

comment on function public.search_my_knowledge_chunks is
  'hybrid_search_knowledge_chunks for the signed-in user: public rows, rows whose owner is '
  'auth.uid(), and rows of the groups that knowledge_viewer_groups() returns. The document '
  'frequencies of BM25 are those of all chunks. Two limits bound the cost of a call: pool_size (at '
  'least match_count) times collections times questions 2,500, and 8,192 characters of all '
  'questions. Raises 42501 if nobody is signed in or the user id is not a UUID, and 22023 for an '
  'argument out of bounds.';
revoke all on function public.search_my_knowledge_chunks
  from public, anon, authenticated, service_role;
grant execute on function public.search_my_knowledge_chunks to authenticated;

create function knowledge_internal.check_visitor_limits(
  arguments knowledge_internal.search_arguments
)
returns void
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  most_rows constant integer := 50;
  last_offset constant integer := 200;
  largest_pool constant integer := 100;
  widest_window constant integer := 2;
  most_collections constant integer := 5;
  most_formulations constant integer := 2;
  longest_text constant integer := 1000; -- characters
  longest_filters constant integer := 2000; -- characters of the JSON
  most_candidates constant integer := 750;
begin
  perform knowledge_internal.check_range('match_count', arguments.match_count, 1, most_rows),
          knowledge_internal.check_range('match_offset', arguments.match_offset, 0, last_offset),
          knowledge_internal.check_range('pool_size', arguments.pool_size, 1, largest_pool),
          knowledge_internal.check_range(
            'neighbor_window', arguments.neighbor_window, 0, widest_window
          ),
          knowledge_internal.check_range(
            'collections', coalesce(cardinality(arguments.collections), 0), 0, most_collections,
            format('at most %s names for visitors', most_collections)
          ),
          knowledge_internal.check_range(
            'query_text', coalesce(length(arguments.query_text), 0), 0, longest_text,
            format('at most %s characters long for visitors', longest_text)
          ),
          knowledge_internal.check_range(
            'filters', coalesce(length(arguments.filters::text), 0), 0, longest_filters,
            format('at most %s characters of JSON for visitors', longest_filters)
          );
  if jsonb_typeof(arguments.formulations) = 'array' then
    perform knowledge_internal.check_range(
              'formulations', jsonb_array_length(arguments.formulations), 0, most_formulations,
              format('an array of at most %s objects for visitors', most_formulations)
            );
    perform knowledge_internal.check_range(
              'formulations[].query_text', length(asked.query_text #>> '{}'), 0, longest_text,
              format('at most %s characters long for visitors', longest_text)
            )
       from jsonb_path_query(arguments.formulations, 'lax $[*].query_text') as asked (query_text)
      where jsonb_typeof(asked.query_text) = 'string';
  end if;
  perform knowledge_internal.check_cost(arguments, most_candidates);
end
$$;

comment on function knowledge_internal.check_visitor_limits(knowledge_internal.search_arguments) is
  'Raises 22023 for an argument beyond what search_public_knowledge_chunks allows visitors.';

create function public.search_public_knowledge_chunks(
  @name @type default @default, -- except viewer_id, public_only, viewer_groups
)
returns setof public.knowledge_search_hit
language plpgsql
stable
-- definer: a visitor may not read the tables of the search, nor call it for all rows.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.public_only := true;
  arguments.@name := search_public_knowledge_chunks.@name; -- except viewer_id, public_only, viewer_groups
  -- Before the search, so that a visitor cannot make it work for an argument that is refused.
  perform knowledge_internal.check_visitor_limits(arguments);
  -- A visitor may not read the trace that explain_hybrid_search reads.
  perform set_config('knowledge_internal.tracing', 'off', true),
          set_config('knowledge_internal.recording', 'off', true),
          set_config('knowledge_internal.readings', '', true);
  return query select hit.* from knowledge_internal.search(arguments) as hit;
end
$$;

comment on function public.search_public_knowledge_chunks is
  'hybrid_search_knowledge_chunks for visitors: public rows only. Nobody may call it until a '
  'project grants it, as to anon. Its limits bound the cost of a call: match_count 50, '
  'match_offset 200, pool_size 100, neighbor_window 2, 5 collections, 2 formulations, pool_size '
  'times collections times questions 750, texts of 1,000 characters, filters of 2,000. The '
  'document frequencies of BM25 are those of all chunks. Raises 22023 for an argument out of '
  'bounds.';
revoke all on function public.search_public_knowledge_chunks
  from public, anon, authenticated, service_role;

create function public.explain_hybrid_search(
  @name @type default @default,
)
returns jsonb
language plpgsql
stable
-- definer: service_role has no rights on the internal schema.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.@name := explain_hybrid_search.@name;
  return knowledge_internal.explanation(arguments);
end
$$;

comment on function public.explain_hybrid_search is
  'How hybrid_search_knowledge_chunks comes to its answer, for the same arguments, as one JSON '
  'object. milliseconds: of the whole call and of each leg alone. vector and text: how the leg '
  'found its rows, how many, and why they are fewer than the pool. text also: the candidates drawn '
  'by the index, and each lexeme of query_text with its document frequency and weight; one left '
  'out draws no candidates but counts in their scores. fusion: the weights used; under auto they '
  'are factors of the cosine similarity and of the BM25 score. lists: the same for each '
  'formulation in each collection. hits: the answer without content, context and metadata. '
  'Document frequencies are of all chunks, whoever owns them. Raises 22023 as the search does.';

revoke all on function public.explain_hybrid_search from public, anon, authenticated;
grant execute on function public.explain_hybrid_search to service_role;

create function public.estimate_hybrid_search(
  @name @type default @default,
)
returns jsonb
language plpgsql
-- Postgres allows no EXPLAIN in a stable function.
volatile
-- definer: service_role has no rights on the internal schema.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  begun_at constant timestamptz := clock_timestamp();
  questions knowledge_internal.search_question[];
  analyses knowledge_internal.query_analysis[];
  wanted knowledge_internal.chunk_filter;
  plan knowledge_internal.search_plan;
begin
@copy "  perform knowledge_internal.check_search_arguments(" before "  if plan.is_empty"
@copy "  analyses := knowledge_internal" before "  asked :="
  return knowledge_internal.search_estimate(
    questions, analyses, plan, collections, case when snippet then match_count else 0 end, begun_at
  );
end
$$;

comment on function public.estimate_hybrid_search is
  'What hybrid_search_knowledge_chunks would cost with the same arguments, as one JSON object. It '
  'does not search. milliseconds: in the database, of a call whose pages are in memory. chunks: '
  'all; matching: those that pass the filters, by a sample. vector and text: how the leg would '
  'find its rows, and how many it would read. The rows are those of all owners, so only '
  'service_role may call it. Raises 22023 as the search does.';

revoke all on function public.estimate_hybrid_search from public, anon, authenticated;
grant execute on function public.estimate_hybrid_search to service_role;

create function public.explain_missing_knowledge_chunk(
  @name @type default @default,
  chunk_id uuid default null,
  document_key text default null
)
returns jsonb
language plpgsql
stable
-- definer: service_role has no rights on the internal schema.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.@name := explain_missing_knowledge_chunk.@name;
  return knowledge_internal.missing_explanation(arguments, chunk_id, document_key);
end
$$;

comment on function public.explain_missing_knowledge_chunk is
  'Why hybrid_search_knowledge_chunks does not return a chunk, or a document (the chunk of it that '
  'is nearest to the query), for the same arguments, as one JSON object. is_found: it is on the '
  'page; place: in the whole list. vector and text: rank and score in each leg alone, without '
  'threshold and beyond the pool. causes: each with the argument and the reason. change: the '
  'arguments with which the search returns it, found by searching (is_verified, place), or what '
  'must change in its row. It searches up to about twenty times. It describes rows that a viewer '
  'may not see, so only service_role may call it. Raises 22023 as the search does, and unless '
  'exactly one of chunk_id and document_key is given.';

revoke all on function public.explain_missing_knowledge_chunk from public, anon, authenticated;
grant execute on function public.explain_missing_knowledge_chunk to service_role;

create function knowledge_internal.sampled_collections(
  wanted knowledge_internal.chunk_filter,
  plan knowledge_internal.search_plan,
  viewer_id uuid,
  viewer_groups text[]
)
returns text[]
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- The statement looks up ids, whatever the filter.
set plan_cache_mode = force_generic_plan
as $$
begin
  return array(
    select chunk.collection
      from public.knowledge_chunks as chunk
     where chunk.id = any (plan.sample)
       @where "  visible_chunks as" before "  -- Lists."
  );
end
$$;

comment on function knowledge_internal.sampled_collections is
  'The collection of each chunk of the plan''s sample that passes the filter.';

create function knowledge_internal.visible_conditions(
  wanted knowledge_internal.chunk_filter,
  plan knowledge_internal.search_plan,
  viewer_id uuid,
  viewer_groups text[]
)
returns text
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  return concat_ws(
    ' and ',
@conditions "  visible_chunks as" before "  matching_chunks as"
  );
end
$$;

comment on function knowledge_internal.visible_conditions is
  'The conditions of visible_chunks that a search has, as SQL about chunk: the planner then reads '
  'only these. Its parameters are the arguments of this function, in their order.';

create function knowledge_internal.present_conditions(
  wanted knowledge_internal.chunk_filter,
  plan knowledge_internal.search_plan,
  viewer_id uuid,
  viewer_groups text[]
)
returns text
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  return concat_ws(
    ' and ',
    knowledge_internal.visible_conditions(wanted, plan, viewer_id, viewer_groups),
@conditions "  matching_chunks as" before "  -- Lists."
  );
end
$$;

comment on function knowledge_internal.present_conditions is
  'The same for matching_chunks.';

create function knowledge_internal.has_matching_chunk(
  wanted knowledge_internal.chunk_filter,
  plan knowledge_internal.search_plan,
  viewer_id uuid,
  viewer_groups text[]
)
returns boolean
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  found boolean;
begin
  execute
    'select exists (select from public.knowledge_chunks as chunk where '
      || knowledge_internal.present_conditions(wanted, plan, viewer_id, viewer_groups) || ')'
    into found
    using wanted, plan, viewer_id, viewer_groups;
  return found;
end
$$;

comment on function knowledge_internal.has_matching_chunk is
  'Whether any chunk passes the filter.';

create function knowledge_internal.compared_rows(
  bits bit varying,
  analysis knowledge_internal.query_analysis,
  query tsquery,
  scope text,
  wanted knowledge_internal.chunk_filter,
  plan knowledge_internal.search_plan,
  viewer_id uuid,
  viewer_groups text[],
  out near_ids uuid[],
  out text_ids uuid[]
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  execute
    'with passing as '
    -- Rows for one leg are not kept.
    || case when bits is null or query is null then 'not ' else '' end || 'materialized ('
    '  select chunk.id, chunk.embedding is not null as is_embedded,'
    '         chunk.embedding_bits operator(extensions.<~>) $5 as distance,'
    '         chunk.bm25 operator(extensions.<#>) $6 as product,'
    '         case when not $7 then chunk.content_tsv end as content_tsv'
    '    from public.knowledge_chunks as chunk'
    '   where ' || knowledge_internal.present_conditions(
                     wanted, plan, viewer_id, viewer_groups
                   ) ||
    '     and ($8 is null or chunk.collection = $8)'
    '  offset 0' -- or each distance and product is computed twice
    ')'
    'select array('
    '         select passing.id from passing'
    '          where $5 is not null and passing.is_embedded'
    '          order by passing.distance, passing.id'
    '          limit $9'
    '       ),'
    '       array('
    '         select passing.id from passing'
    '          where $10 is not null and passing.product < 0'
    '            and ($7 or passing.content_tsv @@ $10)'
    '          order by passing.product, passing.id'
    '          limit $11'
    '       )'
    into near_ids, text_ids
    using wanted, plan, viewer_id, viewer_groups, bits,
          case when query is not null then analysis.weight_vector end,
          -- A negative product shows that a row has a word.
          analysis.is_optional is not false, scope, plan.compared_by_bits, query,
          plan.scored_exactly;
end
$$;

comment on function knowledge_internal.compared_rows is
  'Compares all rows that pass the filter, which its indexes find. near_ids: the nearest by '
  'embedding_bits, empty without bits; text_ids: the best by the words of a query, empty without '
  'one.';

create function knowledge_internal.drawn_rows(
  analysis knowledge_internal.query_analysis,
  scope text,
  is_narrow boolean,
  is_drawn boolean,
  wanted knowledge_internal.chunk_filter,
  plan knowledge_internal.search_plan,
  viewer_id uuid,
  viewer_groups text[],
  out draw integer,
  out ids uuid[],
  out query tsquery
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  most_effort constant double precision := 20; -- rows of the second draw, over those of the first
  drawing tsquery;
begin
  draw := 0;
  query := analysis.matching_query;
  loop
    if draw = 3 then
      query := analysis.relaxed_query;
    end if;
    draw := case when is_drawn or draw = 3 then draw + 1 else 3 end;
    drawing := case
      when draw = 1 then analysis.candidate_query
      when draw = 2 or draw = 4 and not is_narrow then coalesce(
        knowledge_internal.candidate_query(
          analysis.lexemes, analysis.document_frequencies, analysis.weights,
          case when draw = 2 then analysis.required_query end, analysis.document_count,
          least(most_effort, 5 + 4 * plan.pool / (1 + cardinality(ids)))
        ),
        query
      )
      when not (analysis.is_partial and is_narrow) then query
    end;
    if drawing is null then
      select compared.text_ids
        into ids
        from knowledge_internal.compared_rows(
               null, analysis, query, scope, wanted, plan, viewer_id, viewer_groups
             ) as compared;
    elsif plan.is_filtered or wanted.excluded_collections is not null then
      execute
        'select array('
        '  select drawn.id'
        '    from ('
        '      select chunk.id, chunk.content_tsv,'
        '             chunk.bm25 operator(extensions.<#>) $5 as product'
        '        from public.knowledge_chunks as chunk'
        '       where ' || knowledge_internal.present_conditions(
                             wanted, plan, viewer_id, viewer_groups
                           ) ||
        '         and chunk.content_tsv @@ $6'
        '         and ($7 is null or chunk.collection = $7)'
        '      offset 0' -- or each product is computed twice
        '    ) as drawn'
        '   where $8 or drawn.content_tsv @@ $9'
        '   order by drawn.product, drawn.id'
        '   limit $10'
        ')'
        into ids
        using wanted, plan, viewer_id, viewer_groups, analysis.weight_vector, drawing, scope,
              analysis.is_optional or draw = 3, query, plan.scored_exactly;
    else
      ids := array(
        select drawn.id
          from (
            select chunk.id, chunk.content_tsv,
                   chunk.bm25 operator(extensions.<#>) analysis.weight_vector as product
              from knowledge_internal.searchable_chunks as chunk
             where chunk.status = 'active' and chunk.content_tsv @@ drawing
            offset 0
          ) as drawn
         where analysis.is_optional or draw = 3 or drawn.content_tsv @@ query
         order by drawn.product, drawn.id
         limit plan.scored_exactly
      );
    end if;
    exit when draw = 4 or cardinality(ids) >= plan.pool
           or draw = 3 and (cardinality(ids) > 0 or analysis.relaxed_query is null);
  end loop;
end
$$;

comment on function knowledge_internal.drawn_rows is
  'The rows of the text leg for a query with a matching_query, in one collection or in all. '
  'Draw 1 reads the rows of candidate_query, draw 2 those of a wider one, draw 3 every row that '
  'matches, draw 4 rows without what is required. The next draw follows if the last one found '
  'fewer rows than the pool, draw 4 if there was no row. is_drawn: draws 1 and 2 are made. draw: '
  'the last one; query: what its rows match.';

create function knowledge_internal.nearest_rows(
  embedding extensions.vector,
  scored_vector extensions.sparsevec,
  wanted knowledge_internal.chunk_filter,
  plan knowledge_internal.search_plan,
  viewer_id uuid,
  viewer_groups text[],
  out ids uuid[],
  out similarities float8[],
  out word_scores float8[]
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  direction constant extensions.vector := knowledge_internal.indexed_direction(embedding);
begin
  if plan.is_filtered or wanted.excluded_collections is not null then
    execute
      'select array_agg(near.id), array_agg(1 - near.distance), array_agg(near.word_score)'
      '  from ('
      '    select found.*'
      '      from ('
      '        select chunk.id, chunk.embedding operator(extensions.<=>) $5 as distance,'
      '               -(chunk.bm25 operator(extensions.<#>) $6) as word_score'
      '          from knowledge_internal.searchable_chunks as chunk'
      '         where ' || knowledge_internal.present_conditions(
                             wanted, plan, viewer_id, viewer_groups
                           ) ||
      '           and chunk.embedding is not null'
      '         order by chunk.indexed_embedding operator(extensions.<=>) $7'
      '         limit $8'
      '      ) as found'
      '     order by found.distance, found.id'
      '  ) as near'
      into ids, similarities, word_scores
      using wanted, plan, viewer_id, viewer_groups, embedding, scored_vector, direction,
            plan.index_rows;
  else
    select array_agg(near.id), array_agg(1 - near.distance), array_agg(near.word_score)
      into ids, similarities, word_scores
      from (
        select found.*
          from (
            select chunk.id,
                   chunk.embedding operator(extensions.<=>) nearest_rows.embedding as distance,
                   -(chunk.bm25 operator(extensions.<#>) scored_vector) as word_score
              from knowledge_internal.searchable_chunks as chunk
             where chunk.status = 'active' and chunk.embedding is not null
             order by chunk.indexed_embedding operator(extensions.<=>) direction
             limit plan.index_rows
          ) as found
         order by found.distance, found.id
      ) as near;
  end if;
end
$$;

comment on function knowledge_internal.nearest_rows is
  'The rows that pass the filter and that the vector index finds nearest to an embedding, nearest '
  'first, with their cosine similarities and their BM25 scores by the column bm25.';

create function knowledge_internal.rated_rows(
  compared uuid[],
  embedding extensions.vector,
  scored_vector extensions.sparsevec,
  most_rows integer,
  out ids uuid[],
  out similarities float8[],
  out word_scores float8[]
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- The search sets force_custom_plan; the statement here is the same for every query.
set plan_cache_mode = force_generic_plan
as $$
begin
  select array_agg(near.id), array_agg(1 - near.distance), array_agg(near.word_score)
    into ids, similarities, word_scores
    from (
      select chunk.id,
             chunk.embedding operator(extensions.<=>) rated_rows.embedding as distance,
             -(chunk.bm25 operator(extensions.<#>) scored_vector) as word_score
        from unnest(compared) as listed (id)
       cross join lateral (
               select stored.id, stored.embedding, stored.bm25
                 from public.knowledge_chunks as stored
                where stored.id = listed.id
               offset 0
             ) as chunk
       order by distance, chunk.id
       limit most_rows
    ) as near;
end
$$;

comment on function knowledge_internal.rated_rows is
  'The nearest of these rows in full precision, as in nearest_rows.';

create function knowledge_internal.with_found_rows(
  plan knowledge_internal.search_plan,
  wanted knowledge_internal.chunk_filter,
  question knowledge_internal.search_question,
  analysis knowledge_internal.query_analysis,
  viewer_id uuid,
  viewer_groups text[]
)
returns knowledge_internal.search_plan
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  matching constant float8 := knowledge_internal.estimated_chunks(plan);
  is_narrow constant boolean := coalesce(matching <= plan.most_compared, false);
  reads_all constant boolean := coalesce(
    matching <= greatest(
      plan.most_read_by_filter,
      case when question.embedding is not null then plan.most_compared end
    ),
    false
  );
  compares_near boolean := question.embedding is not null;
  compares_text constant boolean := analysis.matching_query is not null
    and analysis.is_partial and is_narrow and reads_all;
  nearest record;
  near_ids uuid[];
  text_ids uuid[];
begin
  if compares_near and not is_narrow then
    -- An assignment takes less time than "select ... into".
    nearest := knowledge_internal.nearest_rows(
      question.embedding, analysis.scored_vector, wanted, plan, viewer_id, viewer_groups
    );
    plan.near_ids := nearest.ids;
    plan.near_similarities := nearest.similarities;
    plan.near_word_scores := nearest.word_scores;
    -- The index scan may have stopped early.
    compares_near := coalesce(cardinality(plan.near_ids), 0) < plan.index_rows;
  end if;
  if compares_near or compares_text then
    -- In one statement, because finding the rows takes most of its time.
    select compared.near_ids, compared.text_ids
      into near_ids, text_ids
      from knowledge_internal.compared_rows(
             case
               when compares_near then knowledge_internal.embedding_bits(question.embedding)
             end,
             analysis, case when compares_text then analysis.matching_query end, null, wanted, plan,
             viewer_id, viewer_groups
           ) as compared;
  end if;
  if compares_near then
    select near.ids, near.similarities, near.word_scores
      into plan.near_ids, plan.near_similarities, plan.near_word_scores
      from knowledge_internal.rated_rows(
             near_ids, question.embedding, analysis.scored_vector, plan.compared_exactly
           ) as near;
  end if;
  if compares_text and (text_ids <> '{}' or analysis.relaxed_query is null) then
    plan.text_ids := text_ids;
    plan.text_draw := 3;
  elsif analysis.matching_query is not null then
    select drawn.ids, drawn.draw
      into plan.text_ids, plan.text_draw
      from knowledge_internal.drawn_rows(
             analysis, null, is_narrow, analysis.is_partial and not reads_all, wanted, plan,
             viewer_id, viewer_groups
           ) as drawn;
  end if;
  return plan;
end
$$;

comment on function knowledge_internal.with_found_rows is
  'The plan of a common search with the rows of its legs. Vector leg: the nearest by the index, or '
  'by embedding_bits where few rows match; text leg: drawn_rows.';

create function knowledge_internal.common_search(
  question knowledge_internal.search_question,
  analysis knowledge_internal.query_analysis,
  asked knowledge_internal.asked_words,
  wanted knowledge_internal.chunk_filter,
  plan knowledge_internal.search_plan,
  match_count integer,
  match_threshold double precision,
  vector_weight double precision,
  text_weight double precision,
  rrf_k double precision,
  fusion text,
  viewer_id uuid,
  public_only boolean,
  match_offset integer,
  snippet boolean,
  viewer_groups text[]
)
returns setof public.knowledge_search_hit
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- One plan serves all calls: what depends on a filter, with_found_rows has found.
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
-- There is one list: a hash table for each join takes more time and memory than the join.
set enable_hashjoin = off
as $$
declare
  questions constant knowledge_internal.search_question[] := array[question]; -- as in the search
  vector_rows integer := least(plan.pool, cardinality(plan.near_ids));
  typical_cosine float8;
  vector_evidence float8;
  text_evidence float8;
  text_ids uuid[];
  text_scores float8[];
  text_cosines float8[];
  is_complete boolean;
  notes jsonb;
begin
  if plan.text_draw = 4 then
    analysis.matching_query := analysis.relaxed_query;
    analysis.bonuses := analysis.relaxed_bonuses;
  else
    analysis.relaxed_parts := null;
  end if;
  if num_nonnulls(question.ignored_embedding, analysis.replaced, analysis.relaxed_parts) > 0 then
    notes := knowledge_internal.search_notes(
      questions, array[analysis], array(select distinct unnest(analysis.relaxed_parts))
    );
  end if;
  while plan.near_similarities[vector_rows] < match_threshold loop
    vector_rows := vector_rows - 1;
  end loop;
  -- near_similarities keeps all neighbours, for leg_evidence.
  plan.near_ids := plan.near_ids[:vector_rows];
  if plan.text_ids <> '{}' then
    select array_agg(hit.id), array_agg(hit.text_score), bool_or(hit.has_every_word),
           array_agg(
             case
               when fusion = 'auto' and hit.text_rank <= plan.cosine_ranks
                    and (hit.id = any (plan.near_ids)) is not true
                 then 1 - (hit.embedding operator(extensions.<=>) question.embedding)
             end
           )
      into text_ids, text_scores, is_complete, text_cosines
      from knowledge_internal.exact_scores(
             plan.text_ids, plan.pool, analysis.lexemes, analysis.scored_weights,
             analysis.readings, analysis.mean_length, analysis.bonuses
           ) as hit;
  end if;
  if fusion = 'auto' then
    select leg.*
      into typical_cosine, vector_evidence, text_evidence
      from knowledge_internal.leg_evidence(
             plan.near_similarities, plan.near_word_scores[:plan.best_hits], text_scores,
             is_complete, plan.typical_rank, analysis.cosine_spread, analysis.mutual_neighbours,
             analysis.coverage_weights
           ) as leg;
  end if;
  return query
  with
@copy "  visible_chunks as" before "  matching_chunks as"
  completed as materialized (
    select id, near.vector_rank, best.text_rank, near.similarity, best.text_score,
           vector_weight * vector_evidence as cosine_weight,
           text_weight * text_evidence as bm25_weight,
           coalesce(
             near.similarity,
             case when best.text_rank <= plan.cosine_ranks
               then coalesce(best.cosine, typical_cosine, 0) end
           ) as cosine,
           coalesce(
             best.text_score,
             case
               when fusion <> 'auto' or analysis.lexemes is null then 0
               when analysis.is_optional and analysis.bonuses is null then near.word_score
               else (
                 select near.word_score + case
                          when analysis.bonuses is null then 0
                          else knowledge_internal.bonus(chunk.content_tsv, analysis.bonuses)
                        end
                   from public.knowledge_chunks as chunk
                  where chunk.id = near.id
                    and (analysis.is_optional or chunk.content_tsv @@ analysis.matching_query)
               )
             end,
             0
           ) as bm25_score,
           coalesce((analysis.bonuses).identifier_bonus, 'infinity') as identifier_bonus
      from unnest(
             plan.near_ids, plan.near_similarities[:vector_rows],
             plan.near_word_scores[:vector_rows]
           ) with ordinality as near (id, similarity, word_score, vector_rank)
      full outer join unnest(text_ids, text_scores, text_cosines)
             with ordinality as best (id, text_score, cosine, text_rank) using (id)
  ),
  ranges as (
    select count(*) as total_count,
           bool_or(greatest(hit.vector_rank, hit.text_rank) = plan.pool) as pool_ended,
@copy "           max(hit.bm25_score)" before "     group by hit.list_id"
  ),
  page as (
    select hit.id, hit.vector_rank, hit.text_rank, hit.similarity, hit.text_score,
@copy "             case fusion" before "           ) as rrf_score"
               as unit_score, least(hit.vector_rank, hit.text_rank) as best_rank,
           ranges.total_count, ranges.pool_ended
      from completed as hit
     cross join ranges
     order by unit_score desc, best_rank, hit.id
     limit match_count offset match_offset
  )
@copy "  select chunk.id, chunk.content" before "         case when neighbor_window"
         null::text, page.total_count, page.pool_ended,
@copy "         chunk.heading, chunk.sensitivity," before "         (select knowledge_internal.search_notes" with "coalesce(knowledge_internal.distinct_names(page.collections), array[chunk.collection])" as "array[chunk.collection]"
         notes
    from page
   -- Without offset 0, the generic plan would read the whole table.
   cross join lateral (
           select stored.id, stored.content, stored.knowledge_type, stored.document_id,
                  stored.chunk_index, stored.source_origin, stored.metadata, stored.content_tsv,
                  stored.collection, stored.document_date, stored.language, stored.heading,
                  stored.sensitivity
             from public.knowledge_chunks as stored
            where stored.id = page.id
           offset 0
         ) as chunk
@copy "    left join public.knowledge_documents as document" before "   -- Always true"
   order by page.unit_score desc, page.best_rank, page.id;
end
$$;

comment on function knowledge_internal.common_search is
  'hybrid_search_knowledge_chunks for one list without grouping, context or recency, whose rows '
  'with_found_rows has found: the same hits as the statement of the search has.';

create function knowledge_internal.visible_words(
  words text[],
  forms tsquery[],
  wanted knowledge_internal.chunk_filter,
  plan knowledge_internal.search_plan,
  viewer_id uuid,
  viewer_groups text[],
  counts_chunks boolean
)
returns table (place bigint, has_form boolean, chunks bigint)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- The planner overestimates how many rows have a word. Compiling takes longer than looking.
set enable_seqscan = off
set jit = off
as $$
declare
  most_read constant integer := case when counts_chunks then 20 else 1 end; -- chunks
begin
  return query execute
    'select asked.place, count(found.id) > 0,'
    '       count(*) filter ('
    '         where $7 and asked.word in ('
    '           select of_chunk.word'
    '             from knowledge_internal.words_of(found.heading, found.content)'
    '                  as of_chunk (word)'
    '         )'
    '       )'
    '  from unnest($5, $6) with ordinality as asked (word, form, place)'
    '  left join lateral ('
    '         select stored.id, stored.heading, stored.content'
    '           from ('
    '             select chunk.id'
    '               from public.knowledge_chunks as chunk'
    '              where ' || knowledge_internal.visible_conditions(
                                wanted, plan, viewer_id, viewer_groups
                              ) ||
    '                and chunk.content_tsv @@ asked.form'
    '              limit $8'
    '           ) as visible'
    '           join public.knowledge_chunks as stored on stored.id = visible.id'
    '       ) as found on true'
    ' group by asked.place'
    using wanted, plan, viewer_id, viewer_groups, words, forms, counts_chunks, most_read;
end
$$;

comment on function knowledge_internal.visible_words is
  'For each form of a word, whether a chunk that the viewer may see has it, and with counts_chunks '
  'how many of the first 20 such chunks have the word itself, which takes longer.';

create function knowledge_internal.matching_chunks(
  arguments knowledge_internal.search_arguments, needs_question boolean
)
returns table (id uuid, document_id uuid)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- The plan depends on the values of the filters.
set plan_cache_mode = force_custom_plan
set standard_conforming_strings = on
as $$
declare
  @name @type := arguments.@name;
  questions knowledge_internal.search_question[];
  analyses knowledge_internal.query_analysis[];
  wanted knowledge_internal.chunk_filter;
  plan knowledge_internal.search_plan;
begin
@copy "  perform knowledge_internal.check_search_arguments(" before "  questions := knowledge_internal"
  if not needs_question and query_embedding is null and formulations is null
     and coalesce(query_text, '') !~ '\S'
  then
    questions := '{}';
  else
@copy "  questions := knowledge_internal" before "  collections := case"
  end if;
@copy "  collections := case" before "  asked :="
  return query
  with
@copy "  visible_chunks as" before "  -- Lists."
  in_scope as not materialized (
    select chunk.*
      from matching_chunks as chunk
     where collections is null or chunk.collection = any (collections)
  )
  select chunk.id, chunk.document_id
    from rows from (unnest(questions), unnest(analyses)) as question
   cross join lateral (
           -- What is required is required no more where no chunk has it.
           select case
                    when question.relaxed_query is null or exists (
                      select from in_scope as strict
                       where strict.content_tsv @@ question.matching_query
                    ) then question.matching_query
                    else question.relaxed_query
                  end as query
           offset 0
         ) as words
    join in_scope as chunk on chunk.content_tsv @@ words.query
  union
  select chunk.id, chunk.document_id
    from unnest(questions) as question
    join in_scope as chunk
      on 1 - (chunk.embedding operator(extensions.<=>) question.embedding) >= match_threshold
  union
  select chunk.id, chunk.document_id
    from in_scope as chunk
   where questions = '{}';
end
$$;

comment on function knowledge_internal.matching_chunks is
  'The chunks that a search would find if its pools had no bound: active chunks that pass the '
  'filters and have the words of query_text, or an embedding of at least match_threshold. Without '
  'a question, all that pass the filters, unless needs_question. Raises 22023 as the search does.';

create function public.count_matching_knowledge_chunks(
  @name @type default @default,
)
returns bigint
language plpgsql
stable
-- definer: callers have no grant on the tables, the arguments decide which rows are counted.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.@name := count_matching_knowledge_chunks.@name;
  return (
    select count(distinct coalesce(case when one_per_document then found.document_id end, found.id))
      from knowledge_internal.matching_chunks(arguments, true) as found
  );
end
$$;

comment on function public.count_matching_knowledge_chunks is
  'The number of hits that hybrid_search_knowledge_chunks would have for the same arguments if its '
  'pools had no bound: active chunks that pass the filters and have the words of query_text, or an '
  'embedding of at least match_threshold (documents, with one_per_document). It compares every '
  'embedding that passes the filters. Arguments that only order, cut or show hits do not count. '
  'Raises 22023 as the search does.';

revoke all on function public.count_matching_knowledge_chunks from public, anon, authenticated;
grant execute on function public.count_matching_knowledge_chunks to service_role;

create function public.facet_knowledge_chunks(
  @name @type default @default,
  facets text[] default '{knowledge_type,collection}',
  facet_limit integer default 10
)
returns table (facet text, value jsonb, count bigint)
language plpgsql
stable
-- definer: callers have no grant on the tables, the arguments decide which rows are counted.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.@name := facet_knowledge_chunks.@name;
  return query
  select counted.* from knowledge_internal.facet_counts(arguments, facets, facet_limit) as counted;
end
$$;

comment on function public.facet_knowledge_chunks is
  'For each facet, the values of the matching chunks and how many chunks have each, the most '
  'frequent first. The arguments are those of hybrid_search_knowledge_chunks, and the chunks '
  'counted are those of count_matching_knowledge_chunks; with neither query_text nor '
  'query_embedding, all active chunks that pass the filters. With one_per_document, documents are '
  'counted. facets: 1 to 20 of knowledge_type, collection, source_id, source_origin, language and '
  'metadata. followed by a key or a path of keys; of an array, each element counts once. '
  'facet_limit: values for each facet, 1 to 1000. value is JSON and can be used in a filter. '
  'Raises 22023 for an argument out of bounds.';

revoke all on function public.facet_knowledge_chunks from public, anon, authenticated;
grant execute on function public.facet_knowledge_chunks to service_role;

create function public.facet_my_knowledge_chunks(
  @name @type default @default, -- except viewer_id, viewer_groups
  facets text[] default '{knowledge_type,collection}',
  facet_limit integer default 10
)
returns table (facet text, value jsonb, count bigint)
language plpgsql
stable
-- definer: a signed-in user may not read the tables, nor choose a viewer_id.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.viewer_id := knowledge_internal.signed_in_viewer('facet_my_knowledge_chunks');
  arguments.viewer_groups := knowledge_internal.current_viewer_groups();
  arguments.@name := facet_my_knowledge_chunks.@name; -- except viewer_id, viewer_groups
  perform knowledge_internal.check_cost(arguments);
  -- A user may not read how many chunks have a word.
  perform set_config('knowledge_internal.recording', 'off', true),
          set_config('knowledge_internal.readings', '', true);
  return query
  select counted.* from knowledge_internal.facet_counts(arguments, facets, facet_limit) as counted;
end
$$;

comment on function public.facet_my_knowledge_chunks is
  'facet_knowledge_chunks for the signed-in user: counts public rows, rows whose owner is '
  'auth.uid(), and rows of the groups that knowledge_viewer_groups() returns. The limits are those '
  'of search_my_knowledge_chunks. Raises 42501 if nobody is signed in or the user id is not a '
  'UUID, and 22023 for an argument out of bounds.';
revoke all on function public.facet_my_knowledge_chunks
  from public, anon, authenticated, service_role;
grant execute on function public.facet_my_knowledge_chunks to authenticated;

create function knowledge_internal.pending_embeddings(
  arguments knowledge_internal.search_arguments
)
returns integer
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- The plan depends on the values of the filters.
set plan_cache_mode = force_custom_plan
set standard_conforming_strings = on
as $$
declare
  most_counted constant integer := 1000;
  @name @type := arguments.@name; -- only filter_type, filters, date_from, date_to, collections, viewer_id, public_only, viewer_groups
  wanted knowledge_internal.chunk_filter;
  plan knowledge_internal.search_plan;
  counted integer;
begin
  perform knowledge_internal.check_flag('public_only', public_only),
          knowledge_internal.check_viewer_groups('viewer_groups', viewer_groups);
  wanted := knowledge_internal.compile_filter(
    filters, filter_type, date_from, date_to, public_only
  );
  collections := case
    when collections is not null then knowledge_internal.checked_collections(collections, 0)
  end;
  -- Usually nothing is pending, and the statement below takes longer to plan than this one to run.
  if not exists (
    select from public.knowledge_chunks as chunk
     where chunk.status = 'active' and chunk.embedding is null
  ) then
    return 0;
  end if;
  plan := knowledge_internal.plan_search(1, 1, wanted, viewer_id, viewer_groups, collections);
  with
@copy "  visible_chunks as" before "  -- Lists."
  pending_chunks as (
    select chunk.id
      from matching_chunks as chunk
     where chunk.embedding is null
       and (collections is null or chunk.collection = any (collections))
     limit most_counted
  )
  select count(*) into counted from pending_chunks;
  return counted;
end
$$;

comment on function knowledge_internal.pending_embeddings(knowledge_internal.search_arguments) is
  'The number of active chunks without an embedding that pass the filters of a search, at most '
  '1000. Raises 22023 as the search does.';

create function public.count_pending_knowledge_embeddings(
  @name @type default @default, -- only filter_type, filters, date_from, date_to, collections, viewer_id, public_only, viewer_groups
)
returns integer
language plpgsql
stable
-- definer: callers have no grant on the tables, the arguments decide which rows are counted.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.@name := count_pending_knowledge_embeddings.@name; -- only filter_type, filters, date_from, date_to, collections, viewer_id, public_only, viewer_groups
  return knowledge_internal.pending_embeddings(arguments);
end
$$;

comment on function public.count_pending_knowledge_embeddings is
  'The number of active chunks that have no embedding yet, so that a search finds them by their '
  'words only. The arguments are those of hybrid_search_knowledge_chunks that select rows; chunks '
  'that these exclude change nothing. It counts to 1000, which means 1000 or more. Raises 22023 '
  'as the search does.';

revoke all on function public.count_pending_knowledge_embeddings
  from public, anon, authenticated;
grant execute on function public.count_pending_knowledge_embeddings to service_role;

create function public.count_my_pending_knowledge_embeddings(
  @name @type default @default, -- only filter_type, filters, date_from, date_to, collections, public_only
)
returns integer
language plpgsql
stable
-- definer: a signed-in user may not read the tables, nor choose a viewer_id.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.viewer_id := knowledge_internal.signed_in_viewer(
    'count_my_pending_knowledge_embeddings'
  );
  arguments.viewer_groups := knowledge_internal.current_viewer_groups();
  arguments.@name := count_my_pending_knowledge_embeddings.@name; -- only filter_type, filters, date_from, date_to, collections, public_only
  return knowledge_internal.pending_embeddings(arguments);
end
$$;

comment on function public.count_my_pending_knowledge_embeddings is
  'count_pending_knowledge_embeddings for the signed-in user: counts public rows, rows whose owner '
  'is auth.uid(), and rows of the groups that knowledge_viewer_groups() returns. Raises 42501 if '
  'nobody is signed in or the user id is not a UUID, and 22023 for an argument out of bounds.';
revoke all on function public.count_my_pending_knowledge_embeddings
  from public, anon, authenticated, service_role;
grant execute on function public.count_my_pending_knowledge_embeddings to authenticated;

create function public.read_knowledge_question(
  @name @type default @default,
)
returns jsonb
language plpgsql
stable
-- definer: service_role has no rights on the internal schema.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  questions knowledge_internal.search_question[];
  analyses knowledge_internal.query_analysis[];
  wanted knowledge_internal.chunk_filter;
  plan knowledge_internal.search_plan;
  corpus record;
  recorded jsonb;
begin
  perform set_config('knowledge_internal.readings', '', true);
@copy "  perform knowledge_internal.check_search_arguments(" before "  if plan.is_empty"
  perform set_config(
            'knowledge_internal.recorded',
            '{"listed": {}, "counted": {}, "expansions": [], "unknown": {}}', true
          ),
          set_config('knowledge_internal.recording', 'on', true);
@copy "  analyses := knowledge_internal" before "  asked :="
  recorded := current_setting('knowledge_internal.recorded');
  perform set_config('knowledge_internal.recording', 'off', true),
          set_config('knowledge_internal.recorded', '', true);
  select * into corpus from knowledge_internal.corpus_size();
  return recorded || jsonb_build_object(
    'fusion', fusion, 'vector_weight', vector_weight, 'text_weight', text_weight,
    'corpus', to_jsonb(corpus) - 'is_small',
    'languages', coalesce(knowledge_internal.query_configurations()::text[], '{}'),
    'statistics', (
      select stored.shared_id
        from public.knowledge_corpus_statistics as stored
       where not corpus.is_small
    )
  );
end
$$;

comment on function public.read_knowledge_question is
  'The first step of a search in several databases: the figures of the words of the question in '
  'this one, for the arguments of hybrid_search_knowledge_chunks. The answers of all databases '
  'together are the readings of the next steps. It shows how many chunks have a word, whoever owns '
  'them, so only service_role may call it. Raises 22023 as the search does.';

revoke all on function public.read_knowledge_question from public, anon, authenticated;
grant execute on function public.read_knowledge_question to service_role;

create function public.knowledge_candidates(
  @name @type default @default,
  readings jsonb default null
)
returns jsonb
language plpgsql
stable
-- definer: callers have no grant on the tables, the arguments decide which rows are read.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
  candidates jsonb;
begin
  arguments.@name := knowledge_candidates.@name;
  arguments := knowledge_internal.use_readings(arguments, readings);
  candidates := knowledge_internal.candidates(arguments);
  perform set_config('knowledge_internal.readings', '', true);
  return candidates;
end
$$;

comment on function public.knowledge_candidates is
  'The second step of a search in several databases: the candidates of this one, with the scores '
  'of both legs and what fusion auto needs, for the arguments of hybrid_search_knowledge_chunks '
  'and the readings, an array of what read_knowledge_question returned in each database. Raises '
  '22023 as the search does, and for readings of another form.';

revoke all on function public.knowledge_candidates from public, anon, authenticated;
grant execute on function public.knowledge_candidates to service_role;

create function public.fuse_knowledge_candidates(
  @name @type default @default,
  readings jsonb default null,
  candidates jsonb default null
)
returns jsonb
language plpgsql
stable
-- definer: service_role has no rights on the internal schema.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.@name := fuse_knowledge_candidates.@name;
  arguments := knowledge_internal.use_readings(arguments, readings);
  perform set_config('knowledge_internal.readings', '', true),
          knowledge_internal.check_candidates(candidates);
  return knowledge_internal.fused_candidates(arguments, candidates);
end
$$;

comment on function public.fuse_knowledge_candidates is
  'The third step of a search in several databases: the page, best hit first, from candidates, an '
  'array of what knowledge_candidates returned in each database. shard: the place in this array of '
  'the one that has the hit. It fuses as hybrid_search_knowledge_chunks does and reads no chunks, '
  'so any of the databases can do it. Raises 22023 as the search does, and for readings or '
  'candidates of another form.';

revoke all on function public.fuse_knowledge_candidates from public, anon, authenticated;
grant execute on function public.fuse_knowledge_candidates to service_role;

create function public.knowledge_candidate_hits(
  @name @type default @default,
  readings jsonb default null,
  page jsonb default null
)
returns setof public.knowledge_search_hit
language plpgsql
stable
-- definer: callers have no grant on the tables, the arguments decide which rows are read.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.@name := knowledge_candidate_hits.@name;
  arguments := knowledge_internal.use_readings(arguments, readings);
  return query
  select hit.*
    from knowledge_internal.candidate_hits(arguments, knowledge_candidate_hits.page) as hit;
  perform set_config('knowledge_internal.readings', '', true);
end
$$;

comment on function public.knowledge_candidate_hits is
  'The last step of a search in several databases: the rows of those hits of a page that this one '
  'has, in the order of the page, as hybrid_search_knowledge_chunks returns them. page: what '
  'fuse_knowledge_candidates returned, or a part of it. A chunk that the arguments do not allow is '
  'not returned. Raises 22023 as the search does, and for readings or a page of another form.';

revoke all on function public.knowledge_candidate_hits from public, anon, authenticated;
grant execute on function public.knowledge_candidate_hits to service_role;

create function knowledge_internal.candidates(arguments knowledge_internal.search_arguments)
returns jsonb
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
@copy "-- The body sets it" before "  asked knowledge_internal.asked_words;"
  @name @type := arguments.@name;
  wanted knowledge_internal.chunk_filter;
  plan knowledge_internal.search_plan;
  callers knowledge_internal.search_settings;
  candidates jsonb;
begin
@copy "  perform knowledge_internal.check_search_arguments(" before "  if plan.is_empty"
@copy "  analyses := knowledge_internal" before "  asked :="
  callers := knowledge_internal.use_search_settings(plan);
  with recursive
@copy "  visible_chunks as" before "  -- Fusion."
  found as (
    select list_id, id, neighbour.similarity, neighbour.vector_rank, neighbour.content_tsv,
           neighbour.bm25, text_results.text_score, text_results.text_rank, text_results.embedding,
           text_results.has_every_word
      from (
        select * from neighbours where vector_rank <= greatest(plan.pool, plan.typical_rank)
      ) as neighbour
      full outer join text_results using (list_id, id)
  ),
  -- The score of the leg that missed a row, too.
  scored as (
    select found.list_id, found.id, found.similarity, found.text_score,
           coalesce(
             found.similarity,
             case when found.text_rank <= plan.cosine_ranks
               then 1 - (found.embedding operator(extensions.<=>) lists.embedding) end
           ) as cosine,
           case when found.vector_rank <= plan.best_hits
             then -(found.bm25 operator(extensions.<#>) lists.scored_vector)
           end as nearest_score,
           case when found.text_rank = 1 then found.has_every_word end as is_complete,
           coalesce(
             found.text_score,
             case when lists.is_optional or found.content_tsv @@ last_draws.query
               then -(found.bm25 operator(extensions.<#>) lists.scored_vector)
                      + case when lists.bonuses is null then 0
                          else knowledge_internal.bonus(found.content_tsv, lists.bonuses) end
             end
           ) as bm25_score
      from found
      join lists on lists.list_id = found.list_id
      left join last_draws on last_draws.list_id = found.list_id
  )
  select jsonb_build_object(
           'lists', (
             select coalesce(
                      jsonb_agg(
                        jsonb_build_object(
                          'list_id', lists.list_id,
                          'formulation', lists.ordinality,
                          'draw', last_draws.draw,
                          'relaxed_parts', last_draws.relaxed_parts,
                          'coverage_weights', lists.coverage_weights,
                          'cosine_spread', lists.cosine_spread,
                          'mutual_neighbours', lists.mutual_neighbours,
                          'identifier_bonus', (lists.bonuses).identifier_bonus
                        )
                      ),
                      '[]'
                    )
               from lists
               left join last_draws on last_draws.list_id = lists.list_id
           ),
           'rows', (
             select coalesce(
                      jsonb_agg(
                        jsonb_strip_nulls(
                          jsonb_build_object(
                            'list_id', scored.list_id,
                            'id', scored.id,
                            'similarity', scored.similarity,
                            'nearest_score', scored.nearest_score,
                            'text_score', scored.text_score,
                            'is_complete', scored.is_complete,
                            'cosine', scored.cosine,
                            'bm25_score', scored.bm25_score,
                            'document_id', chunk.document_id,
                            'external_key', document.external_key,
                            'chunk_index', chunk.chunk_index,
                            'collection', chunk.collection,
                            'document_date', chunk.document_date,
                            'written_at', coalesce(document.updated_at, chunk.updated_at)
                          )
                        )
                      ),
                      '[]'
                    )
               from scored
               join public.knowledge_chunks as chunk on chunk.id = scored.id
               left join public.knowledge_documents as document on document.id = chunk.document_id
           )
         )
    into candidates;
  perform knowledge_internal.restore_settings(callers);
  return candidates;
end
$$;

comment on function knowledge_internal.candidates(knowledge_internal.search_arguments) is
  'The result of knowledge_candidates.';

create function knowledge_internal.fused_candidates(
  arguments knowledge_internal.search_arguments, candidates jsonb
)
returns jsonb
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  @name @type := arguments.@name;
  questions knowledge_internal.search_question[];
  wanted knowledge_internal.chunk_filter;
  plan knowledge_internal.search_plan;
begin
@copy "  perform knowledge_internal.check_search_arguments(" before "  plan := knowledge"
  plan := knowledge_internal.plan_search(pool_size, match_count, null, null, null, null);
@copy "  questions := knowledge_internal" before "  collections := case"
  return (
    with
    lists as materialized (
      select * from knowledge_internal.candidate_lists(candidates)
    ),
    -- Where a database has rows with what is required, it stays required in all.
    dropped as materialized (
      select lists.shard, lists.list_id
        from lists
       where lists.draw = 4
         and exists (
               select from lists as strict
                where strict.formulation = lists.formulation
                  and strict.draw < 4
             )
    ),
    sent as materialized (
      select row.*, (row.shard, row.list_id) in (select shard, list_id from dropped) as is_dropped
        from knowledge_internal.candidate_rows(candidates) as row
    ),
    chunks as materialized (
      select distinct on (sent.id)
             sent.id, sent.shard, sent.document_id, sent.chunk_index, sent.collection,
             sent.document_date
        from sent
       order by sent.id, sent.shard
    ),
    neighbours as materialized (
      select sent.*,
             row_number() over (
               partition by sent.list_id order by sent.similarity desc, sent.id
             ) as vector_rank
        from sent
       where sent.similarity is not null
    ),
    vector_results as (
      select * from neighbours
       where vector_rank <= plan.pool and similarity >= match_threshold
    ),
    text_results as materialized (
      select ranked.*
        from (
          select sent.*,
                 row_number() over (
                   partition by sent.list_id order by sent.text_score desc, sent.id
                 ) as text_rank
            from sent
           where sent.text_score is not null and not sent.is_dropped
        ) as ranked
       where ranked.text_rank <= plan.pool
    ),
    combined as (
      select list_id, id, vector_results.vector_rank, text_results.text_rank,
             vector_results.similarity, text_results.text_score,
             coalesce(
               vector_results.cosine,
               case when text_results.text_rank <= plan.cosine_ranks then text_results.cosine end
             ) as cosine,
             coalesce(
               text_results.text_score,
               case when not vector_results.is_dropped then vector_results.bm25_score end
             ) as bm25_score
        from vector_results
        full outer join text_results using (list_id, id)
    ),
    evidence as materialized (
      select list.list_id, list.identifier_bonus, leg.*
        from (select distinct on (list_id) * from lists order by list_id, shard) as list
        left join lateral knowledge_internal.leg_evidence(
               array(
                 select similarity from neighbours
                  where list_id = list.list_id order by vector_rank
               ),
               array(
                 select nearest_score from neighbours
                  where list_id = list.list_id and vector_rank <= plan.best_hits
               ),
               array(
                 select text_score from text_results
                  where list_id = list.list_id order by text_rank
               ),
               (
                 select is_complete from text_results
                  where list_id = list.list_id and text_rank = 1
               ),
               plan.typical_rank, list.cosine_spread, list.mutual_neighbours, list.coverage_weights
             ) as leg on fusion = 'auto'
    ),
    completed as (
      select combined.list_id, combined.id, combined.vector_rank, combined.text_rank,
             combined.similarity, combined.text_score,
             vector_weight * evidence.vector_evidence as cosine_weight,
             text_weight * evidence.text_evidence as bm25_weight,
             coalesce(
               combined.cosine,
               case when combined.text_rank <= plan.cosine_ranks
                 then coalesce(evidence.typical_cosine, 0) end
             ) as cosine,
             coalesce(combined.bm25_score, 0) as bm25_score,
             coalesce(evidence.identifier_bonus, 'infinity') as identifier_bonus
        from combined
        join evidence on evidence.list_id = combined.list_id
    ),
@copy "  ranges as" before "  -- Page."
@copy "  ordered as" before "  -- A search returns" with "public.knowledge_chunks" as "chunks"
    shown as (
      select page.*, chunks.shard from page join chunks on chunks.id = page.id
    )
    select jsonb_build_object(
             'hits', (
               select coalesce(
                        jsonb_agg(
                          jsonb_build_object(
                            'id', shown.id, 'shard', shown.shard, 'place', shown.unit_place,
                            'vector_rank', shown.vector_rank, 'text_rank', shown.text_rank,
                            'similarity', shown.similarity, 'text_score', shown.text_score,
                            'score', shown.unit_score, 'collections', shown.collections,
                            'total_count', shown.total_count
                          )
                          order by shown.unit_place
                        ),
                        '[]'
                      )
                 from shown
             ),
             'pool_ended', exists (
               select from completed where greatest(vector_rank, text_rank) = plan.pool
             ),
             'relaxed_parts', (
               select jsonb_agg(distinct part.name)
                 from lists
                cross join unnest(lists.relaxed_parts) as part (name)
                where (lists.shard, lists.list_id) not in (select shard, list_id from dropped)
             )
           )
  );
end
$$;

comment on function knowledge_internal.fused_candidates is
  'The result of fuse_knowledge_candidates.';

create function knowledge_internal.candidate_hits(
  arguments knowledge_internal.search_arguments, fused jsonb
)
returns setof public.knowledge_search_hit
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- The rows are looked up by their ids, and few.
set enable_seqscan = off
set jit = off
as $$
declare
  @name @type := arguments.@name;
  questions knowledge_internal.search_question[];
  analyses knowledge_internal.query_analysis[];
  asked knowledge_internal.asked_words;
  wanted knowledge_internal.chunk_filter;
  plan knowledge_internal.search_plan;
begin
  if jsonb_typeof(fused -> 'hits') is distinct from 'array' then
    raise exception 'page must be an object with hits, as fuse_knowledge_candidates returned it'
      using errcode = '22023';
  end if;
@copy "  perform knowledge_internal.check_search_arguments(" before "  callers :="
  return query
  with
@copy "  visible_chunks as" before "  -- Lists."
  page as (
    select hit.id, hit.place as unit_place, hit.vector_rank, hit.text_rank, hit.similarity,
           hit.text_score, hit.score as unit_score, hit.collections, hit.total_count
      from jsonb_to_recordset(fused -> 'hits') as hit (
             id uuid, place bigint, vector_rank bigint, text_rank bigint, similarity float8,
             text_score float8, score float8, collections text[], total_count bigint
           )
      join matching_chunks as allowed on allowed.id = hit.id
  ),
  last_draws as (
    select array(
             select part.name
               from jsonb_array_elements_text(
                      coalesce(nullif(fused -> 'relaxed_parts', 'null'), '[]')
                    ) as part (name)
           ) as relaxed_parts
  )
@copy "  select chunk.id, chunk.content" before "         page.total_count, plan.pool"
         page.total_count, (fused ->> 'pool_ended')::boolean,
@copy "         chunk.heading, chunk.sensitivity," before "   -- Always true"
   order by page.unit_place;
exception
  when invalid_parameter_value then
    raise;
  when data_exception then
    raise exception 'page: %', left(sqlerrm, 200)
      using errcode = '22023', hint = 'Send what fuse_knowledge_candidates returned.';
end
$$;

comment on function knowledge_internal.candidate_hits is
  'The result of knowledge_candidate_hits.';

notify pgrst, 'reload schema';
