-- examples: the three documents that the examples of these pages search.
-- For an empty database with `second-brain migrate --dimensions 3`: embeddings that can be read by eye.
-- With the extra `embedded`:
--   second-brain server dev start
--   second-brain migrate --dimensions 3
--   export SECOND_BRAIN_DSN="$(second-brain server dev start)"
--   psql "$SECOND_BRAIN_DSN" -f docs/examples.sql
-- The first axis is money, the second hardware, the third access.

select public.upsert_knowledge_document(
  document => '{"external_key": "handbook/invoices.md", "title": "Invoices", "knowledge_type": "document",
                "visibility": "public", "source_url": "https://example.org/handbook/invoices",
                "metadata": {"team": "finance", "tags": ["billing"]}}',
  chunks => '[
    {"content": "An invoice is cancelled by a credit note, never by deleting it.",
     "embedding": [0.9, 0.1, 0.2], "embedding_model": "by-hand"},
    {"content": "The first reminder goes out 14 days after the due date.",
     "embedding": [0.8, 0.0, 0.1], "embedding_model": "by-hand"}
  ]'
);

select public.upsert_knowledge_document(
  document => '{"external_key": "tickets/4711", "title": "Recorder DS-7604", "knowledge_type": "conversation",
                "source_origin": "email", "document_date": "2025-03-14", "collection": "tickets",
                "metadata": {"tags": ["hardware"], "priority": 2}}',
  chunks => '[
    {"content": "After a power cut the DS-7604 shows no cameras. Firmware 4.30 brings them back.",
     "embedding": [0.1, 0.9, 0.1], "embedding_model": "by-hand", "metadata": {"customer": "Harbour Ltd"}}
  ]'
);

select public.upsert_knowledge_document(
  document => '{"external_key": "decisions/keys.md", "title": "API keys", "knowledge_type": "decision",
                "document_date": "2025-11-03", "sensitivity": "internal",
                "metadata": {"team": "platform", "tags": ["security", "api"],
                             "review": {"by": "Mia", "due": "2026-11-03"}}}',
  chunks => '[
    {"content": "Service role keys stay on the server and are rotated every 90 days.",
     "embedding": [0.1, 0.2, 0.9], "embedding_model": "by-hand"},
    {"content": "A leaked key is revoked first and replaced afterwards.",
     "embedding": [0.0, 0.1, 0.9], "embedding_model": "by-hand"}
  ]'
);
