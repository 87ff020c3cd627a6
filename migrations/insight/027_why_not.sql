-- 027_why_not: why a search does not return a chunk, and where the chunk stands.
-- Module: insight.
-- Adds: function explain_missing_knowledge_chunk and those that it calls.
-- Locks nothing that exists.
-- Written from supabase/schemas/modules/insight/27_why_not.sql by `make baseline`: edit that file.

-- The first of the chunks in the list that match_offset pages through; place is null if none is in
-- it. page_score: the score of the last hit on the page that was asked for.
create function knowledge_internal.place_in_list(
  arguments knowledge_internal.search_arguments, chunk_ids uuid[],
  out chunk_id uuid, out place bigint, out score double precision, out page_score double precision
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  last_offset constant integer := 1000;
  last_on_page constant integer := arguments.match_offset + arguments.match_count;
  lists jsonb;
  ids uuid[] := '{}';
  scores double precision[] := '{}';
begin
  -- A page as large as the pool leaves the pool, and so the list, as it is.
  arguments.match_count := greatest(arguments.pool_size, arguments.match_count);
  arguments.neighbor_window := 0;
  arguments.snippet := false;
  -- The legs run once; each page fuses the same lists.
  lists := jsonb_build_object(
    'lists', knowledge_internal.rank_all(knowledge_internal.plan_search(arguments))
  );
  for skipped in 0 .. last_offset by arguments.match_count loop
    arguments.match_offset := skipped;
    select ids || array_agg(hit.id order by hit.ordinality),
           scores || array_agg(hit.rrf_score order by hit.ordinality)
      into ids, scores
      from knowledge_internal.search(arguments, lists) with ordinality as hit;
    exit when cardinality(ids) < skipped + arguments.match_count;
  end loop;
  page_score := scores[last_on_page];
  select listed.id, listed.place, listed.score
    into chunk_id, place, score
    from unnest(ids, scores) with ordinality as listed (id, score, place)
   where listed.id = any (chunk_ids)
   order by listed.place
   limit 1;
end
$$;

-- The arguments of a search, each alone, that leave out an active chunk. path: its place in search.
-- The conditions are those of the search itself.
create function knowledge_internal.failed_restrictions(
  search jsonb, chunk public.knowledge_chunks,
  out cause text, out argument text, out reason text, out path text[]
) returns setof record
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  field text;
  alone jsonb;
  given knowledge_internal.search_arguments;
  scope knowledge_internal.row_scope;
  is_passed boolean;
begin
  for cause, argument, alone, path, field in
    select one.cause, one.argument, one.alone, one.path, one.field
      from knowledge_internal.restrictions(
             case when knowledge_internal.holding_condition(now()) is null then search
               else jsonb_build_object('as_of', now()) || search end
           ) as one
  loop
    given := knowledge_internal.given_arguments('{"as_of": null}' || alone);
    scope := (knowledge_internal.plan_search(given, false)).scope;
    is_passed := exists (
      select from knowledge_internal.rows_in_scope(array[chunk.id], scope) as row
       where '' = any (given.collections)
          or (row.collection = any (given.collections)) is not false
    );
    if not is_passed then
      reason := case
        when jsonb_typeof(alone -> 'filters') = 'array'
          then format('it does not meet %s', alone #> '{filters,0}')
        when alone ? 'filters' then (
          select format('its %s is not %s', entry.key, entry.value)
            from jsonb_each(alone -> 'filters') as entry
        )
        when field is not null
          then format('its %s is %s', field, coalesce(to_jsonb(chunk) ->> field, 'missing'))
        when argument = 'public_only' then 'it is private'
        when cause = 'validity' and (chunk.metadata ->> 'valid_until')::timestamptz <= given.as_of
          then 'it ended on ' || (chunk.metadata ->> 'valid_until')
        when cause = 'validity' then 'it starts on ' || (chunk.metadata ->> 'valid_from')
        when cause = 'like' then 'it is in like_ids, or in the document of one'
        when cause <> 'permission' then format('it does not meet %s', argument)
        else 'it is private' || coalesce(
          ' to ' || nullif(
            concat_ws(
              ' and ', 'its owner ' || chunk.owner_id,
              'the groups ' || array_to_string(chunk.allowed_groups, ', ')
            ),
            ''
          ),
          ', and it has no owner and no allowed_groups'
        )
      end;
      return next;
    end if;
  end loop;
end
$$;

-- The words and phrases of a query that leave out a chunk: those that it has although the query
-- excludes them, and those that it lacks although the query requires them.
create function knowledge_internal.excluding_words(
  query_text text, search_mode text, content_tsv tsvector,
  out having_excluded text[], out lacking_required text[]
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- Postgres sends a NOTICE for a query of stop words only.
set client_min_messages = warning
set standard_conforming_strings = on as $$
declare
  words_read constant integer := 512;
  configurations constant regconfig[] := knowledge_internal.query_configurations();
  operands constant knowledge_internal.query_operand[] := knowledge_internal.query_operands(
    query_text, search_mode, words_read
  );
begin
  select array_agg(shown.operand order by listed.place) filter (
           where operands[listed.place].is_excluded
             and numnode(conditions.excluded) > 0
             and content_tsv @@ conditions.excluded
         ),
         array_agg(shown.operand order by listed.place) filter (
           where operands[listed.place].is_required
             and not operands[listed.place].is_excluded
             and numnode(conditions.required) > 0
             and not content_tsv @@ conditions.required
         )
    into having_excluded, lacking_required
    from generate_subscripts(operands, 1) as listed (place)
   cross join concat(
           operands[listed.place].source, '~' || operands[listed.place].further
         ) as shown (operand)
   cross join lateral knowledge_internal.operand_conditions(
           operands[listed.place:listed.place], configurations, '{}'
         ) as conditions;
end
$$;

-- Rank and score of a chunk in each leg alone, for the question itself, without threshold, among
-- the chunks that the arguments allow; and why the search does not find it in the leg. A rank
-- beyond the largest pool is counted if there are at most 100,000 chunks.
create function knowledge_internal.leg_standings(
  given knowledge_internal.search_arguments, asked knowledge_internal.question,
  chunk public.knowledge_chunks, out vector jsonb, out text jsonb, out causes jsonb
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  largest_pool constant integer := 1000;
  most_counted constant integer := 100000; -- chunks
  pool constant integer := greatest(given.pool_size, given.match_count);
  alone constant knowledge_internal.search_arguments := jsonb_populate_record(
    given,
    jsonb_build_object(
      'query_embedding', asked.embedding, 'query_text', asked.query_text,
      'formulations', null, 'fusion', 'rrf', 'vector_weight', 1, 'text_weight', 1,
      'match_threshold', -1, 'pool_size', largest_pool, 'match_count', largest_pool,
      'match_offset', 0, 'one_per_document', false, 'recency_half_life', null, 'boosts', null,
      'order_by', null, 'min_confidence', null,
      'collections', case
        when '' = any (given.collections) and chunk.collection <> all (given.collections)
          then given.collections
        when given.collections is not null then array[chunk.collection]
      end
    )
  );
  plan constant knowledge_internal.search_plan := knowledge_internal.plan_search(alone);
  list constant knowledge_internal.ranked_list := (knowledge_internal.rank_all(plan))[1];
  question constant knowledge_internal.question := plan.questions[1];
  has_text constant boolean := num_nonnulls(asked.query_text, question.lexemes) > 0;
  is_countable constant boolean := (plan.settings).chunk_count <= most_counted;
  vector_rank bigint := array_position(list.vector_ids, chunk.id);
  similarity constant double precision :=
    1 - (chunk.embedding operator(extensions.<=>) question.embedding);
  text_rank bigint := array_position(list.text_ids, chunk.id);
  text_score double precision := list.text_scores[text_rank];
  matching uuid[];
  having_excluded text[];
  lacking_required text[];
  has_word boolean;
begin
  if vector_rank is null and similarity is not null and is_countable then
    select count(*)
      into vector_rank
      from knowledge_internal.matching_chunks(
             jsonb_populate_record(
               alone,
               jsonb_build_object(
                 'query_text', null, 'match_threshold', similarity, 'text_weight', 0
               )
             ),
             true
           );
  end if;
  if text_rank is null and has_text and is_countable then
    matching := array(
      select matched.id
        from knowledge_internal.matching_chunks(
               jsonb_populate_record(alone, '{"query_embedding": null, "vector_weight": 0}'), true
             ) as matched
    );
    if chunk.id = any (matching) then
      select scored.place, scored.score
        into text_rank, text_score
        from knowledge_internal.exact_scores(
               matching, cardinality(matching), question, plan.settings,
               list.relaxed_parts is not null
             ) as best
       cross join unnest(best.ids, best.scores) with ordinality as scored (id, score, place)
       where scored.id = chunk.id;
    end if;
  end if;

  if text_rank is null and has_text then
    select words.having_excluded, words.lacking_required
      into having_excluded, lacking_required
      from knowledge_internal.excluding_words(
             asked.query_text, given.search_mode, chunk.content_tsv
           ) as words;
    has_word := exists (
      select from unnest(question.lexeme_queries) as word (query)
       where chunk.content_tsv @@ word.query
    );
  end if;
  select coalesce(
           jsonb_agg(jsonb_strip_nulls(to_jsonb(listed) - 'is_true')) filter (where listed.is_true),
           '[]'
         )
    into causes
    from (
      values
        (
          'no_embedding', 'vector', null, null, 'it has no embedding',
          question.embedding is not null and chunk.embedding is null
        ),
        (
          'threshold', 'vector', 'match_threshold', null,
          format('its similarity is %s', round(similarity::numeric, 4)),
          similarity < given.match_threshold
        ),
        (
          'pool', 'vector', 'pool_size', null,
          format('its rank is %s', coalesce(vector_rank::text, 'above 1000')),
          similarity is not null and (vector_rank <= pool) is not true
        ),
        (
          'excluded_words', 'text', 'query_text', having_excluded,
          format('it has what is excluded: %s', array_to_string(having_excluded, ', ')),
          having_excluded is not null
        ),
        (
          'required_words', 'text', 'query_text', lacking_required,
          format('it lacks what is required: %s', array_to_string(lacking_required, ', ')),
          lacking_required is not null
        ),
        ('no_words', 'text', 'query_text', null, 'it has no word of the query', not has_word),
        (
          'pool', 'text', 'pool_size', null,
          format('its rank is %s', coalesce(text_rank::text, 'above 1000')),
          text_rank > pool
            or has_word and having_excluded is null and lacking_required is null
        )
    ) as listed (cause, leg, argument, parts, reason, is_true);
  vector := jsonb_build_object('rank', vector_rank, 'similarity', similarity);
  text := jsonb_build_object('rank', text_rank, 'score', text_score);
end
$$;

-- This chunk, or the documents with this name (an external_key, else an id, else a source_url) and
-- their chunks. What required_filters leave out is not stored, whatever its status: scope has those
-- alone. document_condition: they as SQL about document.
create function knowledge_internal.named_rows(
  chunk_id uuid, name text, scope knowledge_internal.row_scope, document_condition text,
  out document_ids uuid[], out chunk_ids uuid[]
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  given_id constant uuid := case when knowledge_internal.is_input(name, 'uuid') then name end;
  is_named text;
begin
  if name is null then
    chunk_ids := array[chunk_id];
  else
    foreach is_named in array '{external_key = $3,id = $2,source_url = $3}'::text[] loop
      execute 'select array(select document.id from public.knowledge_documents as document'
        ' where document.' || is_named || ' and ' || document_condition || '),'
        ' array(select chunk.id from public.knowledge_chunks as chunk where chunk.id = $4)'
        into document_ids, chunk_ids
        using scope, given_id, name, case is_named when 'id = $2' then given_id end;
      exit when document_ids <> '{}' or chunk_ids <> '{}';
    end loop;
    chunk_ids := chunk_ids || array(
      select chunk.id from public.knowledge_chunks as chunk
       where chunk.document_id = any (document_ids)
    );
  end if;
  if scope.is_restricted then
    execute 'select array(select chunk.id from public.knowledge_chunks as chunk'
      ' where chunk.id = any ($2) and ' || knowledge_internal.required_sql(scope.required) || ')'
      into chunk_ids using scope, chunk_ids;
  end if;
end
$$;

-- What names a chunk and its document in an answer, each null where there is none.
create function knowledge_internal.named_chunk(chunk public.knowledge_chunks, document_id uuid)
returns jsonb
language sql stable security invoker set search_path = pg_catalog, pg_temp as $$
  select jsonb_build_object(
           'document', case when document.id is not null then jsonb_build_object(
             'id', document.id, 'external_key', document.external_key,
             'title', document.title, 'source_url', document.source_url
           ) end,
           'chunk', case when (chunk).id is not null then jsonb_build_object(
             'id', (chunk).id, 'document_key', document.external_key, 'title', document.title,
             'chunk_index', (chunk).chunk_index, 'collection', (chunk).collection,
             'status', (chunk).status
           ) end
         )
    from (select) as one
    left join public.knowledge_documents as document
      on document.id = named_chunk.document_id
$$;

-- The argument without which a chunk would be on the page, null for none. cause: its name in
-- explain_missing_knowledge_chunk.
create function knowledge_internal.outdone_by(
  given knowledge_internal.search_arguments, chunk_id uuid, last_place integer,
  out cause text, out argument text
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  neutral jsonb;
begin
  for cause, argument, neutral in
    values ('order', 'order_by', 'null'::jsonb), ('boosts', 'boosts', 'null'),
           ('recency', 'recency_half_life', 'null'), ('diversity', 'diversity', '0')
  loop
    if to_jsonb(given) -> argument <> neutral and (
      knowledge_internal.place_in_list(
        jsonb_populate_record(given, jsonb_build_object(argument, neutral)), array[chunk_id]
      )
    ).place <= last_place then
      return;
    end if;
  end loop;
  cause := null;
  argument := null;
end
$$;

-- The cause of a chunk that other hits of the list stand for, null if there is none.
create function knowledge_internal.hidden_by(
  given knowledge_internal.search_arguments, chunk public.knowledge_chunks
) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  without knowledge_internal.search_arguments := given;
  argument text;
  neutral jsonb;
  reason text;
begin
  for argument, neutral, reason in
    values ('merge_duplicates', 'false'::jsonb, 'a better hit says the same'),
           ('one_per_document', 'false', 'its document shows another chunk, at place %s'),
           ('max_per_document', 'null', 'its document shows better chunks, the first at place %s')
  loop
    continue when to_jsonb(given) -> argument = neutral;
    without := jsonb_populate_record(without, jsonb_build_object(argument, neutral));
    if (knowledge_internal.place_in_list(without, array[chunk.id])).place is not null then
      return jsonb_build_object(
        'cause', case argument when 'merge_duplicates' then 'duplicate' else 'grouped' end,
        'argument', argument,
        'reason', format(
          reason,
          (
            knowledge_internal.place_in_list(
              given,
              array(
                select sibling.id from public.knowledge_chunks as sibling
                 where sibling.document_id = chunk.document_id
              )
            )
          ).place
        )
      );
    end if;
  end loop;
  return null;
end
$$;

create function public.explain_missing_knowledge_chunk(
  search jsonb, chunk_id uuid default null, document_key text default null
) returns jsonb
-- definer: service_role has no rights on the internal schema.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  given constant knowledge_internal.search_arguments :=
    knowledge_internal.given_arguments(search, 'search', 'explain_missing_knowledge_chunk');
  first_place constant integer := given.match_offset + 1;
  last_place constant integer := given.match_offset + given.match_count;
  plan constant knowledge_internal.search_plan := knowledge_internal.plan_search(given);
  -- What each leg is asked, like_ids aside: null for a leg that is not run.
  question constant knowledge_internal.question := (coalesce(plan.asked, plan.questions))[1];
  -- The rows that have words of the question, also where no row passes the filters.
  matching_query constant tsquery := (
    (
      knowledge_internal.plan_search(knowledge_internal.given_arguments(
        search - 'filters' - array(
          select named.names[1] from knowledge_internal.row_arguments() as named
           where named.field is not null
        )
      ))
    ).questions[1]
  ).matching_query;
  required constant knowledge_internal.row_scope := knowledge_internal.row_scope(
    null, null, null, false, (plan.scope).required
  );
  shows_document constant text := knowledge_internal.document_condition(required);
  candidates uuid[];
  documents uuid[];
  chunk public.knowledge_chunks;
  allowing knowledge_internal.search_arguments := given; -- without what leaves out the chunk
  placed record;
  failed record;
  vector jsonb := '{"rank": null, "similarity": null}';
  text jsonb := '{"rank": null, "score": null}';
  leg_causes jsonb;
  outdone record;
  confidence double precision;
  is_found boolean;
  original_place bigint;
  causes jsonb := '[]';
begin
  if num_nonnulls(chunk_id, document_key) <> 1 then
    raise exception 'exactly one of chunk_id and document_key must be given'
      using errcode = '22023';
  end if;
  select named.document_ids, named.chunk_ids
    into documents, candidates
    from knowledge_internal.named_rows(chunk_id, document_key, required, shows_document) as named;
  placed := knowledge_internal.place_in_list(given, candidates);
  original_place := placed.place;
  is_found := coalesce(original_place between first_place and last_place, false);
  -- Of the chunks of a document, the one that is found, else the one that is nearest to the query.
  select stored.* into chunk
    from public.knowledge_chunks as stored
    join knowledge_internal.rows_by_id(
           candidates, asked_embedding => plan.questions[1].embedding
         ) as measured using (id)
   order by id is distinct from placed.chunk_id, stored.status <> 'active', measured.distance,
            (stored.content_tsv @@ matching_query) is not true, stored.chunk_index, id limit 1;
  select row.content, row.embedding into chunk.content, chunk.embedding
    from knowledge_internal.chunk_rows as row where row.id = chunk.id;

  if chunk.id is null then
    causes := causes || jsonb_build_object(
      'cause', 'not_stored',
      'reason', case
        when cardinality(documents) > 0 then 'the document has no chunk'
        when document_key is null then 'no chunk has this id'
        else 'no document has this external_key, id or source_url, and no chunk this id'
      end
    );
  elsif chunk.status <> 'active' then
    causes := causes || jsonb_build_object(
      'cause', 'status', 'reason', format('its status is %s', chunk.status)
    );
  else
    if original_place is null then
      -- From the end, so that the places of the conditions before stay as they are.
      for failed in
        select one.*
          from knowledge_internal.failed_restrictions(search, chunk) with ordinality as one
         order by one.ordinality desc
      loop
        causes := to_jsonb(failed) - '{path,ordinality}'::text[] || causes;
        search := search #- failed.path
          || case failed.cause when 'validity' then '{"as_of": null}' else '{}' end::jsonb;
        if search #> failed.path[:2] = '{}' then
          search := search #- failed.path[:2];
        end if;
      end loop;
    end if;
    -- Nothing else is said about a chunk that the viewer may not see, or that is given.
    if not jsonb_path_exists(causes, '$[*] ? (@.cause == "permission" || @.cause == "like")') then
      if original_place is null and given.min_confidence is not null then
        select (knowledge_internal.answer_confidences(
                 coalesce(free.asked, free.questions), array[chunk.id]
               ))[1]
          into confidence
          from knowledge_internal.plan_search(
                 knowledge_internal.given_arguments(search - 'min_confidence')
               ) as free;
        if (confidence >= given.min_confidence) is not true then
          causes := causes || jsonb_build_object(
            'cause', 'confidence', 'argument', 'min_confidence',
            'reason', format('its confidence is %s', trunc(confidence::numeric, 4))
          );
          search := search - 'min_confidence';
        end if;
      end if;
      if causes <> '[]' then
        allowing := knowledge_internal.given_arguments(search);
        placed := knowledge_internal.place_in_list(allowing, array[chunk.id]);
      end if;
      select standings.vector, standings.text, standings.causes
        into vector, text, leg_causes
        from knowledge_internal.leg_standings(allowing, question, chunk) as standings;
      if placed.place < first_place then
        causes := causes || jsonb_build_object(
          'cause', 'earlier_page', 'argument', 'match_offset',
          'reason', format('its place is %s', placed.place)
        );
      elsif placed.place > last_place then
        outdone := knowledge_internal.outdone_by(allowing, chunk.id, last_place);
        causes := causes || jsonb_build_object(
          'cause', coalesce(outdone.cause, 'fusion'),
          'argument', coalesce(outdone.argument, 'match_count'),
          'reason', format(
            'its place is %s: its score is %s, that of the last hit on the page %s',
            placed.place, placed.score, placed.page_score
          )
        );
      elsif placed.place is null then
        causes := causes || coalesce(
          knowledge_internal.hidden_by(allowing, chunk),
          case when leg_causes = '[]' then jsonb_build_object(
            'cause', 'missed', 'reason', 'no leg reads all rows, and it was not among those read'
          ) end,
          leg_causes
        );
      end if;
    end if;
  end if;

  execute 'select array(select document.id from public.knowledge_documents as document'
    ' where document.id = $2 and ' || shows_document || ')'
    into documents using required, coalesce(chunk.document_id, documents[1]);
  return jsonb_build_object(
    'is_found', is_found,
    'place', original_place,
    'pool', greatest(given.pool_size, given.match_count),
    'vector', vector || jsonb_build_object('is_run', plan.questions[1].embedding is not null),
    'text', text || jsonb_build_object(
      'is_run', num_nonnulls(question.query_text, plan.questions[1].lexemes) > 0
    ),
    'causes', causes
  ) || knowledge_internal.named_chunk(chunk, documents[1]);
end
$$;

comment on function public.explain_missing_knowledge_chunk is
  'Why hybrid_search_knowledge_chunks does not return a chunk, or a document (the chunk of it that '
  'is nearest to the query), as one JSON object. search: its arguments as an object. document_key: '
  'the external_key of a document, else its id or that of a chunk, else a source_url. is_found: it '
  'is on the page; place: in the whole list. vector and text: rank and score in each leg alone, '
  'without threshold and beyond the pool. causes: each with the argument and the reason. It '
  'describes rows that a viewer may not see, so only service_role may call it; those that '
  'required_filters leave out are not stored for it. Raises 22023 as the '
  'search does, for an unknown name, and unless exactly one of chunk_id and document_key is given.';
revoke all on function public.explain_missing_knowledge_chunk from public, anon, authenticated;
grant execute on function public.explain_missing_knowledge_chunk to service_role;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
