-- 022_own_documents: what users do with documents beside searching them.
-- Module: own_documents.
-- Adds: functions that list and read the documents that a user may see, delete the user's own, and
-- list and read documents for a user whom a backend names; a type; and the indexes of
-- knowledge_documents that these lists read. Locks it against writes until it commits.

-- Raises 22023 for a null where true or false is needed.
create function knowledge_internal.check_flag(argument text, given boolean) returns void
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  if given is null then
    raise exception '% must be true or false, not null', argument using errcode = '22023';
  end if;
end
$$;

create index knowledge_documents_owner on public.knowledge_documents (owner_id, external_key);
create index knowledge_documents_public on public.knowledge_documents (external_key)
  where visibility = 'public';
create index knowledge_documents_groups on public.knowledge_documents using gin (allowed_groups)
  where allowed_groups is not null;

create type public.knowledge_own_document as (
  id uuid,
  external_key text,
  title text,
  knowledge_type text,
  collection text,
  source_origin text,
  source_url text,
  document_date date,
  visibility text,
  is_own boolean,
  chunk_count bigint,
  created_at timestamptz,
  updated_at timestamptz
);

comment on type public.knowledge_own_document is
  'A document of list_my_knowledge_documents and list_visible_knowledge_documents. is_own: the '
  'user owns it. chunk_count: the number of its active chunks that are visible to the user.';

-- A page of documents in order of external_key: those that the viewer owns, with include_public the
-- public ones, with include_groups those of viewer_groups, with include_all every one; of these
-- collections (null: all of them), and of the scope of required_filters.
create function knowledge_internal.listed_documents(
  viewer uuid, viewer_groups text[], include_public boolean, include_groups boolean,
  include_all boolean, collections text[], required_filters jsonb, page_size integer,
  after_key text
) returns setof public.knowledge_own_document
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  -- Whom the documents, and their chunks that are counted, are visible to.
  scope constant knowledge_internal.row_scope := knowledge_internal.row_scope(
    null, case when not include_all then viewer end,
    case when not include_all then coalesce(viewer_groups, '{}') end, false,
    knowledge_internal.compile_filter(
      required_filters, null, null, null, false, 'required_filters'
    )
  );
  -- Each list is read from an index in the order of its keys, and ends with the page.
  lists constant text := (
    select string_agg(
             '(select document.* from public.knowledge_documents as document where ' || list.sql
             || ' and ' || knowledge_internal.document_condition(scope)
             || case when after_key is null then '' else ' and document.external_key > $6' end
             || case when collections is null then '' else ' and document.collection = any ($4)' end
             || ' order by document.external_key limit $5)',
             ' union all '
           )
      from unnest(array[
             case
               when include_all then 'true'
               when viewer is not null then 'document.owner_id = $2'
             end,
             case when include_public then
               'document.visibility = ''public'''
               ' and ($2 is null or document.owner_id is distinct from $2)' end,
             case when include_groups and not include_all then
               'document.allowed_groups && $3'
               ' and ($2 is null or document.owner_id is distinct from $2)'
               || case when include_public then ' and document.visibility <> ''public''' else '' end
             end
           ]) as list (sql)
     where list.sql is not null
  );
  page public.knowledge_documents[];
begin
  execute
    'select array('
    '  select row(listed.*)::public.knowledge_documents from (' || lists || ') as listed'
    '   order by listed.external_key limit $5)'
    into page
    using scope, viewer, viewer_groups, collections, page_size, after_key;
  return query
  select document.id, document.external_key, document.title, document.knowledge_type,
         document.collection, document.source_origin, document.source_url, document.document_date,
         document.visibility, coalesce(document.owner_id = viewer, false),
         coalesce(counted.chunks, 0), document.created_at, document.updated_at
    from unnest(page) as document
    left join knowledge_internal.sizes_of_documents(
           array(select listed.id from unnest(page) as listed), scope
         ) as counted on counted.document_id = document.id
   order by document.external_key;
end
$$;

create function knowledge_internal.documents_for_user(
  page_size integer, after_key text, include_public boolean, include_groups boolean
) returns setof public.knowledge_own_document
-- definer: a signed-in user may not read the tables.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  viewer constant uuid := knowledge_internal.signed_in_viewer('list_my_knowledge_documents');
  groups constant text[] := knowledge_internal.current_viewer_groups();
begin
  perform knowledge_internal.check_range('page_size', page_size, 1, 200),
          knowledge_internal.check_flag('include_public', include_public),
          knowledge_internal.check_flag('include_groups', include_groups);
  return query
  select listed.*
    from knowledge_internal.listed_documents(
           viewer, groups, include_public, include_groups, false, null, null, page_size, after_key
         ) as listed;
end
$$;

create function public.list_my_knowledge_documents(
  page_size integer default 50, after_key text default null,
  include_public boolean default false, include_groups boolean default false
) returns setof public.knowledge_own_document
language sql stable security invoker set search_path = pg_catalog, pg_temp
return knowledge_internal.documents_for_user(
  page_size, after_key, include_public, include_groups
);

comment on function public.list_my_knowledge_documents is
  'The documents that the signed-in user owns, with include_public the public ones too, and with '
  'include_groups those of the user''s groups, in order of external_key. page_size: 1 to 200; '
  'after_key: the external_key that the page before ended with. Raises 42501 without a user and '
  'for a user whose id is not a UUID, 22023 for an argument out of bounds.';
revoke all on function public.list_my_knowledge_documents
  from public, anon, authenticated, service_role;
grant execute on function
  public.list_my_knowledge_documents, knowledge_internal.documents_for_user to authenticated;

-- A document and a page of its active chunks as one JSON object, null where the viewer may not see
-- it. viewer and viewer_groups null: every row. collections null: all of them. Raises 22023 for an
-- argument out of bounds.
create function knowledge_internal.document_content(
  target uuid, viewer uuid, viewer_groups text[], public_only boolean, collections text[],
  required_filters jsonb, chunk_count integer, chunk_offset integer
) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  scope constant knowledge_internal.row_scope := knowledge_internal.row_scope(
    knowledge_internal.compile_filter(null, null, null, null, public_only), viewer, viewer_groups,
    public_only,
    knowledge_internal.compile_filter(
      required_filters, null, null, null, false, 'required_filters'
    )
  );
  chunks uuid[];
  shown jsonb;
  is_visible boolean;
begin
  if target is null then
    raise exception 'document must be the id of a document, not null' using errcode = '22023';
  end if;
  perform knowledge_internal.check_range('chunk_count', chunk_count, 1, 500),
          knowledge_internal.check_range('chunk_offset', chunk_offset, 0, 1000000);
  chunks := array(
    select chunk.id from knowledge_internal.rows_of(array[target], scope) as chunk
     where chunk.document_id = target and (chunk.collection = any (collections)) is not false
     order by chunk.chunk_index, chunk.id
  );
  shown := jsonb_build_object(
    'chunk_count', cardinality(chunks),
    'chunks', (
      select coalesce(
               jsonb_agg(
                 jsonb_build_object(
                   'id', chunk.id, 'chunk_index', chunk.chunk_index, 'heading', chunk.heading,
                   'content', chunk.content, 'collection', chunk.collection,
                   'metadata', chunk.metadata
                 )
                 order by chunk.chunk_index, chunk.id
               ),
               '[]'
             )
        from knowledge_internal.page_rows(
               chunks[chunk_offset + 1:chunk_offset + chunk_count]
             ) as chunk
    )
  );
  execute
    'select true from public.knowledge_documents as document'
    ' where document.id = $2 and ' || knowledge_internal.document_condition(scope)
    into is_visible
    using scope, target;
  return (
    select jsonb_build_object(
             'id', stored.id,
             'external_key', stored.external_key,
             'title', stored.title,
             'knowledge_type', stored.knowledge_type,
             'collection', stored.collection,
             'source_origin', stored.source_origin,
             'source_url', stored.source_url,
             'author', stored.author,
             'document_date', stored.document_date,
             'language', stored.language,
             'visibility', stored.visibility,
             -- Members of one group do not learn of the others.
             'allowed_groups', case when stored.owner_id = viewer then stored.allowed_groups end,
             'sensitivity', stored.sensitivity,
             'is_own', coalesce(stored.owner_id = viewer, false),
             'metadata', stored.metadata,
             'created_at', stored.created_at,
             'updated_at', stored.updated_at
           ) || shown
      from public.knowledge_documents as stored
     where stored.id = target
       and is_visible
       and ((stored.collection = any (collections)) is not false or chunks <> '{}')
  );
end
$$;

create function knowledge_internal.document_for_user(
  document uuid, chunk_count integer, chunk_offset integer
) returns jsonb
-- definer: a signed-in user may not read the tables.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  viewer constant uuid := knowledge_internal.signed_in_viewer('read_my_knowledge_document');
begin
  return knowledge_internal.document_content(
    document, viewer, knowledge_internal.current_viewer_groups(), false, null, null,
    chunk_count, chunk_offset
  );
end
$$;

create function public.read_my_knowledge_document(
  document uuid, chunk_count integer default 100, chunk_offset integer default 0
) returns jsonb
language sql stable security invoker set search_path = pg_catalog, pg_temp
return knowledge_internal.document_for_user(document, chunk_count, chunk_offset);

comment on function public.read_my_knowledge_document is
  'A document that is public, owned by the signed-in user, or of one of the user''s groups, as one '
  'JSON object. allowed_groups: only for the owner. chunks: its active chunks in their order, at '
  'most chunk_count (1 to 500), after skipping chunk_offset (0 to 1000000). The key chunk_count is '
  'the number of all active chunks that the user can see. Null if the document '
  'does not exist or is not visible to the user. Raises 42501 if nobody is signed in or the user '
  'id is not a UUID, and 22023 for an argument out of bounds.';
revoke all on function public.read_my_knowledge_document
  from public, anon, authenticated, service_role;
grant execute on function
  public.read_my_knowledge_document, knowledge_internal.document_for_user to authenticated;

create function public.read_knowledge_document(
  document uuid, viewer_id uuid default null, viewer_groups text[] default null,
  public_only boolean default false, collections text[] default null,
  chunk_count integer default 100, chunk_offset integer default 0,
  required_filters jsonb default null
) returns jsonb
-- definer: service_role has no rights on the internal schema.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform knowledge_internal.check_caller('read_knowledge_document');
  perform knowledge_internal.check_flag('public_only', public_only),
          knowledge_internal.sorted_groups('viewer_groups', viewer_groups, most => 1000);
  return knowledge_internal.document_content(
    document, viewer_id, viewer_groups, public_only, collections, required_filters, chunk_count,
    chunk_offset
  );
end
$$;

comment on function public.read_knowledge_document is
  'A document as one JSON object, for a trusted backend: as read_my_knowledge_document returns it, '
  'to a user whom the backend names. viewer_id, viewer_groups: documents and chunks that are '
  'public, the viewer''s or of one of these groups (both null: all); public_only: public ones; '
  'collections: those of these collections; required_filters: chunks that meet these conditions, '
  'as of a search, and their document. Null if the document does not exist or may not be seen. '
  'Raises 22023 for an argument out of bounds.';
revoke all on function public.read_knowledge_document
  from public, anon, authenticated, service_role;
grant execute on function public.read_knowledge_document to service_role;

create function public.list_visible_knowledge_documents(
  viewer_id uuid default null, viewer_groups text[] default null,
  public_only boolean default false, collections text[] default null,
  page_size integer default 50, after_key text default null, required_filters jsonb default null
) returns setof public.knowledge_own_document
-- definer: service_role has no rights on the internal schema.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform knowledge_internal.check_caller('list_visible_knowledge_documents');
  perform knowledge_internal.check_flag('public_only', public_only),
          knowledge_internal.sorted_groups('viewer_groups', viewer_groups, most => 1000),
          knowledge_internal.check_range('page_size', page_size, 1, 200);
  return query
  select listed.*
    from knowledge_internal.listed_documents(
           case when not public_only then viewer_id end,
           case when not public_only then viewer_groups end,
           public_only or num_nonnulls(viewer_id, viewer_groups) > 0,
           true,
           not public_only and num_nonnulls(viewer_id, viewer_groups) = 0,
           collections, required_filters, page_size, after_key
         ) as listed;
end
$$;

comment on function public.list_visible_knowledge_documents is
  'The documents that a user may see, for a trusted backend which names the user, in order of '
  'external_key. viewer_id, viewer_groups: documents that are public, the viewer''s or of one of '
  'these groups (both null: all); public_only: public ones; collections: those of these '
  'collections. page_size: 1 to 200; after_key: the external_key that the page before ended with; '
  'required_filters: documents with chunks that meet these conditions, as of a search. Raises '
  '22023 for an argument out of bounds.';
revoke all on function public.list_visible_knowledge_documents
  from public, anon, authenticated, service_role;
grant execute on function public.list_visible_knowledge_documents to service_role;

create function knowledge_internal.delete_for_user(document uuid) returns boolean
-- definer: a signed-in user may not write the tables.
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  viewer constant uuid := knowledge_internal.signed_in_viewer('delete_my_knowledge_document');
  document_key text;
begin
  if document is null then
    raise exception 'document must be the id of a document, not null' using errcode = '22023';
  end if;
  -- Locked, so that it does not change hands before it is deleted.
  select owned.external_key into document_key
    from public.knowledge_documents as owned
   where owned.id = document
     and owned.owner_id = viewer
     for update;
  if not found then
    return false;
  end if;
  perform public.delete_knowledge_document(document_key);
  return true;
end
$$;

create function public.delete_my_knowledge_document(document uuid) returns boolean
language sql volatile security invoker set search_path = pg_catalog, pg_temp
return knowledge_internal.delete_for_user(document);

comment on function public.delete_my_knowledge_document is
  'Deletes a document that the signed-in user owns, and all versions of its chunks, for good; true '
  'when it did. False for a document that does not exist and for one of somebody else, public, of '
  'the user''s groups or not. Raises 42501 without a user and for a user whose id is not a UUID, '
  '22023 for null.';
revoke all on function public.delete_my_knowledge_document
  from public, anon, authenticated, service_role;
grant execute on function
  public.delete_my_knowledge_document, knowledge_internal.delete_for_user to authenticated;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
