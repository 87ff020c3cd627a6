// Written by `supabase gen types`: UPDATE_GOLDEN=1 pytest tests/supabase/test_frontend.py

export type Json = string | number | boolean | null | { [key: string]: Json | undefined } | Json[];

export type Database = {
  "public": {
    Tables: {
      "knowledge_adoption_problems": {
        Row: {
          "adoption_name": string;
          "is_carried_over": boolean;
          "key": string;
          "key_hash": number;
          "reason": string;
          "recorded_at": string;
        };
        ComputedFields: never;
        Insert: {
          "adoption_name": string;
          "is_carried_over": boolean;
          "key": string;
          "key_hash": number;
          "reason": string;
          "recorded_at"?: string;
        };
        Update: {
          "adoption_name"?: string;
          "is_carried_over"?: boolean;
          "key"?: string;
          "key_hash"?: number;
          "reason"?: string;
          "recorded_at"?: string;
        };
        Relationships: [
          {
            foreignKeyName: "knowledge_adoption_problems_adoption_name_fkey";
            columns: ["adoption_name"];
            isOneToOne: false;
            referencedRelation: "knowledge_adoptions";
            referencedColumns: ["name"];
          },
        ];
      };
      "knowledge_adoptions": {
        Row: {
          "created_at": string;
          "embedding_column": unknown;
          "embedding_model": string | null;
          "key_column": unknown;
          "key_type": string;
          "name": string;
          "order_sql": string | null;
          "parent": unknown;
          "parent_columns": (unknown)[] | null;
          "place_id": number;
          "source": unknown;
          "write_token": string;
        };
        ComputedFields: never;
        Insert: {
          "created_at"?: string;
          "embedding_column"?: unknown;
          "embedding_model"?: string | null;
          "key_column": unknown;
          "key_type": string;
          "name": string;
          "order_sql"?: string | null;
          "parent"?: unknown;
          "parent_columns"?: (unknown)[] | null;
          "place_id": number;
          "source": unknown;
          "write_token"?: string;
        };
        Update: {
          "created_at"?: string;
          "embedding_column"?: unknown;
          "embedding_model"?: string | null;
          "key_column"?: unknown;
          "key_type"?: string;
          "name"?: string;
          "order_sql"?: string | null;
          "parent"?: unknown;
          "parent_columns"?: (unknown)[] | null;
          "place_id"?: number;
          "source"?: unknown;
          "write_token"?: string;
        };
        Relationships: [];
      };
      "knowledge_chunks": {
        Row: {
          "allowed_groups": (string)[] | null;
          "bm25": unknown;
          "chunk_index": number | null;
          "collection": string;
          "content": string | null;
          "content_hash": string;
          "content_tsv": unknown;
          "content_words": number;
          "created_at": string;
          "distinct_words": number;
          "document_date": string | null;
          "document_id": string | null;
          "embedding": string | null;
          "embedding_bits": unknown;
          "embedding_model": string | null;
          "field_stamp": number | null;
          "heading": string | null;
          "id": string;
          "knowledge_type": string;
          "language": string;
          "metadata": NonNullable<Json>;
          "owner_id": string | null;
          "place_embedded": boolean | null;
          "place_id": number | null;
          "place_key": string | null;
          "sensitivity": string | null;
          "source_id": string | null;
          "source_origin": string;
          "status": string;
          "text_length": number;
          "updated_at": string;
          "version": number;
          "visibility": string;
        };
        ComputedFields: never;
        Insert: {
          "allowed_groups"?: (string)[] | null;
          "bm25"?: unknown;
          "chunk_index"?: number | null;
          "collection": string;
          "content"?: string | null;
          "content_hash": string;
          "content_tsv": unknown;
          "content_words"?: number;
          "created_at"?: string;
          "distinct_words"?: number;
          "document_date"?: string | null;
          "document_id"?: string | null;
          "embedding"?: string | null;
          "embedding_bits"?: unknown;
          "embedding_model"?: string | null;
          "field_stamp"?: number | null;
          "heading"?: string | null;
          "id"?: string;
          "knowledge_type"?: string;
          "language"?: string;
          "metadata"?: NonNullable<Json>;
          "owner_id"?: string | null;
          "place_embedded"?: boolean | null;
          "place_id"?: number | null;
          "place_key"?: string | null;
          "sensitivity"?: string | null;
          "source_id"?: string | null;
          "source_origin"?: string;
          "status"?: string;
          "text_length": number;
          "updated_at"?: string;
          "version"?: number;
          "visibility"?: string;
        };
        Update: {
          "allowed_groups"?: (string)[] | null;
          "bm25"?: unknown;
          "chunk_index"?: number | null;
          "collection"?: string;
          "content"?: string | null;
          "content_hash"?: string;
          "content_tsv"?: unknown;
          "content_words"?: number;
          "created_at"?: string;
          "distinct_words"?: number;
          "document_date"?: string | null;
          "document_id"?: string | null;
          "embedding"?: string | null;
          "embedding_bits"?: unknown;
          "embedding_model"?: string | null;
          "field_stamp"?: number | null;
          "heading"?: string | null;
          "id"?: string;
          "knowledge_type"?: string;
          "language"?: string;
          "metadata"?: NonNullable<Json>;
          "owner_id"?: string | null;
          "place_embedded"?: boolean | null;
          "place_id"?: number | null;
          "place_key"?: string | null;
          "sensitivity"?: string | null;
          "source_id"?: string | null;
          "source_origin"?: string;
          "status"?: string;
          "text_length"?: number;
          "updated_at"?: string;
          "version"?: number;
          "visibility"?: string;
        };
        Relationships: [
          {
            foreignKeyName: "knowledge_chunks_document_id_fkey";
            columns: ["document_id"];
            isOneToOne: false;
            referencedRelation: "knowledge_documents";
            referencedColumns: ["id"];
          },
          {
            foreignKeyName: "knowledge_chunks_knowledge_type_fkey";
            columns: ["knowledge_type"];
            isOneToOne: false;
            referencedRelation: "knowledge_types";
            referencedColumns: ["name"];
          },
          {
            foreignKeyName: "knowledge_chunks_source_id_fkey";
            columns: ["source_id"];
            isOneToOne: false;
            referencedRelation: "knowledge_sources";
            referencedColumns: ["id"];
          },
          {
            foreignKeyName: "knowledge_chunks_source_origin_fkey";
            columns: ["source_origin"];
            isOneToOne: false;
            referencedRelation: "knowledge_source_origins";
            referencedColumns: ["name"];
          },
        ];
      };
      "knowledge_corpus_statistics": {
        Row: {
          "analysed_at": string | null;
          "analysed_rows": number | null;
          "content_words": number;
          "cosine_spread": number;
          "distinct_words": number;
          "document_count": number;
          "id": boolean;
          "language_shares": Json | null;
          "least_frequency": number | null;
          "mean_length": number;
          "refreshed_at": string;
          "sample": (string)[];
        };
        ComputedFields: never;
        Insert: {
          "analysed_at"?: string | null;
          "analysed_rows"?: number | null;
          "content_words"?: number;
          "cosine_spread": number;
          "distinct_words"?: number;
          "document_count": number;
          "id"?: boolean;
          "language_shares"?: Json | null;
          "least_frequency"?: number | null;
          "mean_length": number;
          "refreshed_at"?: string;
          "sample": (string)[];
        };
        Update: {
          "analysed_at"?: string | null;
          "analysed_rows"?: number | null;
          "content_words"?: number;
          "cosine_spread"?: number;
          "distinct_words"?: number;
          "document_count"?: number;
          "id"?: boolean;
          "language_shares"?: Json | null;
          "least_frequency"?: number | null;
          "mean_length"?: number;
          "refreshed_at"?: string;
          "sample"?: (string)[];
        };
        Relationships: [];
      };
      "knowledge_documents": {
        Row: {
          "allowed_groups": (string)[] | null;
          "author": string | null;
          "collection": string;
          "content_hash": string | null;
          "created_at": string;
          "document_date": string | null;
          "external_key": string;
          "id": string;
          "knowledge_type": string;
          "language": string;
          "metadata": NonNullable<Json>;
          "owner_id": string | null;
          "sensitivity": string | null;
          "source_id": string | null;
          "source_origin": string;
          "source_row": Json | null;
          "source_url": string | null;
          "title": string | null;
          "updated_at": string;
          "visibility": string;
        };
        ComputedFields: never;
        Insert: {
          "allowed_groups"?: (string)[] | null;
          "author"?: string | null;
          "collection"?: string;
          "content_hash"?: string | null;
          "created_at"?: string;
          "document_date"?: string | null;
          "external_key": string;
          "id"?: string;
          "knowledge_type"?: string;
          "language"?: string;
          "metadata"?: NonNullable<Json>;
          "owner_id"?: string | null;
          "sensitivity"?: string | null;
          "source_id"?: string | null;
          "source_origin"?: string;
          "source_row"?: Json | null;
          "source_url"?: string | null;
          "title"?: string | null;
          "updated_at"?: string;
          "visibility"?: string;
        };
        Update: {
          "allowed_groups"?: (string)[] | null;
          "author"?: string | null;
          "collection"?: string;
          "content_hash"?: string | null;
          "created_at"?: string;
          "document_date"?: string | null;
          "external_key"?: string;
          "id"?: string;
          "knowledge_type"?: string;
          "language"?: string;
          "metadata"?: NonNullable<Json>;
          "owner_id"?: string | null;
          "sensitivity"?: string | null;
          "source_id"?: string | null;
          "source_origin"?: string;
          "source_row"?: Json | null;
          "source_url"?: string | null;
          "title"?: string | null;
          "updated_at"?: string;
          "visibility"?: string;
        };
        Relationships: [
          {
            foreignKeyName: "knowledge_documents_knowledge_type_fkey";
            columns: ["knowledge_type"];
            isOneToOne: false;
            referencedRelation: "knowledge_types";
            referencedColumns: ["name"];
          },
          {
            foreignKeyName: "knowledge_documents_source_id_fkey";
            columns: ["source_id"];
            isOneToOne: false;
            referencedRelation: "knowledge_sources";
            referencedColumns: ["id"];
          },
          {
            foreignKeyName: "knowledge_documents_source_origin_fkey";
            columns: ["source_origin"];
            isOneToOne: false;
            referencedRelation: "knowledge_source_origins";
            referencedColumns: ["name"];
          },
        ];
      };
      "knowledge_embedding_claims": {
        Row: {
          "attempts": number;
          "available_at": string;
          "claimed_at": string | null;
          "content_hash": string;
          "failed_at": string | null;
          "model": string;
          "reason": string | null;
          "worker": string | null;
        };
        ComputedFields: never;
        Insert: {
          "attempts": number;
          "available_at": string;
          "claimed_at"?: string | null;
          "content_hash": string;
          "failed_at"?: string | null;
          "model": string;
          "reason"?: string | null;
          "worker"?: string | null;
        };
        Update: {
          "attempts"?: number;
          "available_at"?: string;
          "claimed_at"?: string | null;
          "content_hash"?: string;
          "failed_at"?: string | null;
          "model"?: string;
          "reason"?: string | null;
          "worker"?: string | null;
        };
        Relationships: [];
      };
      "knowledge_judgments": {
        Row: {
          "chunk_id": string | null;
          "collection": string;
          "document_id": string | null;
          "grade": number;
          "id": string;
          "is_generated": boolean;
          "judged_at": string;
          "judged_by": string | null;
          "question": string;
        };
        ComputedFields: never;
        Insert: {
          "chunk_id"?: string | null;
          "collection"?: string;
          "document_id"?: string | null;
          "grade": number;
          "id"?: string;
          "is_generated"?: boolean;
          "judged_at"?: string;
          "judged_by"?: string | null;
          "question": string;
        };
        Update: {
          "chunk_id"?: string | null;
          "collection"?: string;
          "document_id"?: string | null;
          "grade"?: number;
          "id"?: string;
          "is_generated"?: boolean;
          "judged_at"?: string;
          "judged_by"?: string | null;
          "question"?: string;
        };
        Relationships: [];
      };
      "knowledge_lexeme_statistics": {
        Row: {
          "frequency": number;
          "lexeme": string;
        };
        ComputedFields: never;
        Insert: {
          "frequency": number;
          "lexeme": string;
        };
        Update: {
          "frequency"?: number;
          "lexeme"?: string;
        };
        Relationships: [];
      };
      "knowledge_model_weights": {
        Row: {
          "model": string;
          "vector_weight": number;
        };
        ComputedFields: never;
        Insert: {
          "model": string;
          "vector_weight": number;
        };
        Update: {
          "model"?: string;
          "vector_weight"?: number;
        };
        Relationships: [];
      };
      "knowledge_query_log": {
        Row: {
          "asked_at": string;
          "collections": (string)[] | null;
          "confidence": number | null;
          "degraded": string | null;
          "embed_ms": number;
          "error_kind": string | null;
          "hits": number | null;
          "id": string;
          "is_cached": boolean;
          "mode": string;
          "mode_used": string | null;
          "question": string;
          "rerank_ms": number;
          "search_ms": number;
          "total_ms": number;
          "viewer_mark": string | null;
        };
        ComputedFields: never;
        Insert: {
          "asked_at": string;
          "collections"?: (string)[] | null;
          "confidence"?: number | null;
          "degraded"?: string | null;
          "embed_ms": number;
          "error_kind"?: string | null;
          "hits"?: number | null;
          "id"?: string;
          "is_cached": boolean;
          "mode": string;
          "mode_used"?: string | null;
          "question": string;
          "rerank_ms": number;
          "search_ms": number;
          "total_ms": number;
          "viewer_mark"?: string | null;
        };
        Update: {
          "asked_at"?: string;
          "collections"?: (string)[] | null;
          "confidence"?: number | null;
          "degraded"?: string | null;
          "embed_ms"?: number;
          "error_kind"?: string | null;
          "hits"?: number | null;
          "id"?: string;
          "is_cached"?: boolean;
          "mode"?: string;
          "mode_used"?: string | null;
          "question"?: string;
          "rerank_ms"?: number;
          "search_ms"?: number;
          "total_ms"?: number;
          "viewer_mark"?: string | null;
        };
        Relationships: [];
      };
      "knowledge_query_log_key": {
        Row: {
          "is_only": boolean;
          "secret": string;
        };
        ComputedFields: never;
        Insert: {
          "is_only"?: boolean;
          "secret": string;
        };
        Update: {
          "is_only"?: boolean;
          "secret"?: string;
        };
        Relationships: [];
      };
      "knowledge_settings": {
        Row: {
          "bm25_b": number | null;
          "bm25_k1": number | null;
          "collection": string;
          "embedding_model": string | null;
          "fusion": string | null;
          "heading_weight": number | null;
          "measured": Json | null;
          "text_keys": (string)[] | null;
          "text_weight": number;
          "title_weight": number | null;
          "updated_at": string;
          "vector_weight": number;
        };
        ComputedFields: never;
        Insert: {
          "bm25_b"?: number | null;
          "bm25_k1"?: number | null;
          "collection"?: string;
          "embedding_model"?: string | null;
          "fusion"?: string | null;
          "heading_weight"?: number | null;
          "measured"?: Json | null;
          "text_keys"?: (string)[] | null;
          "text_weight"?: number;
          "title_weight"?: number | null;
          "updated_at"?: string;
          "vector_weight"?: number;
        };
        Update: {
          "bm25_b"?: number | null;
          "bm25_k1"?: number | null;
          "collection"?: string;
          "embedding_model"?: string | null;
          "fusion"?: string | null;
          "heading_weight"?: number | null;
          "measured"?: Json | null;
          "text_keys"?: (string)[] | null;
          "text_weight"?: number;
          "title_weight"?: number | null;
          "updated_at"?: string;
          "vector_weight"?: number;
        };
        Relationships: [];
      };
      "knowledge_source_origins": {
        Row: {
          "created_at": string;
          "name": string;
        };
        ComputedFields: never;
        Insert: {
          "created_at"?: string;
          "name": string;
        };
        Update: {
          "created_at"?: string;
          "name"?: string;
        };
        Relationships: [];
      };
      "knowledge_sources": {
        Row: {
          "config": NonNullable<Json>;
          "created_at": string;
          "id": string;
          "name": string;
          "origin": string;
        };
        ComputedFields: never;
        Insert: {
          "config"?: NonNullable<Json>;
          "created_at"?: string;
          "id"?: string;
          "name": string;
          "origin"?: string;
        };
        Update: {
          "config"?: NonNullable<Json>;
          "created_at"?: string;
          "id"?: string;
          "name"?: string;
          "origin"?: string;
        };
        Relationships: [
          {
            foreignKeyName: "knowledge_sources_origin_fkey";
            columns: ["origin"];
            isOneToOne: false;
            referencedRelation: "knowledge_source_origins";
            referencedColumns: ["name"];
          },
        ];
      };
      "knowledge_synonyms": {
        Row: {
          "collection": string;
          "is_two_way": boolean;
          "synonym": string;
          "synonym_lexemes": (string)[];
          "term": string;
          "term_lexemes": (string)[];
          "weight": number;
        };
        ComputedFields: never;
        Insert: {
          "collection"?: string;
          "is_two_way"?: boolean;
          "synonym": string;
          "synonym_lexemes"?: (string)[];
          "term": string;
          "term_lexemes"?: (string)[];
          "weight"?: number;
        };
        Update: {
          "collection"?: string;
          "is_two_way"?: boolean;
          "synonym"?: string;
          "synonym_lexemes"?: (string)[];
          "term"?: string;
          "term_lexemes"?: (string)[];
          "weight"?: number;
        };
        Relationships: [];
      };
      "knowledge_tenant_words": {
        Row: {
          "chunks": number;
          "tenant": number;
          "word": number;
        };
        ComputedFields: never;
        Insert: {
          "chunks": number;
          "tenant": number;
          "word": number;
        };
        Update: {
          "chunks"?: number;
          "tenant"?: number;
          "word"?: number;
        };
        Relationships: [];
      };
      "knowledge_tenants": {
        Row: {
          "allowed_groups": (string)[] | null;
          "changed_at": string | null;
          "collection": string;
          "document_count": number;
          "id": number;
          "mean_length": number;
          "owner_id": string | null;
          "visibility": string | null;
        };
        ComputedFields: never;
        Insert: {
          "allowed_groups"?: (string)[] | null;
          "changed_at"?: string | null;
          "collection": string;
          "document_count": number;
          "id": number;
          "mean_length": number;
          "owner_id"?: string | null;
          "visibility"?: string | null;
        };
        Update: {
          "allowed_groups"?: (string)[] | null;
          "changed_at"?: string | null;
          "collection"?: string;
          "document_count"?: number;
          "id"?: number;
          "mean_length"?: number;
          "owner_id"?: string | null;
          "visibility"?: string | null;
        };
        Relationships: [];
      };
      "knowledge_types": {
        Row: {
          "created_at": string;
          "name": string;
        };
        ComputedFields: never;
        Insert: {
          "created_at"?: string;
          "name": string;
        };
        Update: {
          "created_at"?: string;
          "name"?: string;
        };
        Relationships: [];
      };
      "knowledge_words": {
        Row: {
          "chunk_id": string;
          "folded": string;
          "id": string;
          "word": string;
        };
        ComputedFields: never;
        Insert: {
          "chunk_id": string;
          "folded": string;
          "id"?: string;
          "word": string;
        };
        Update: {
          "chunk_id"?: string;
          "folded"?: string;
          "id"?: string;
          "word"?: string;
        };
        Relationships: [];
      };
    };
    Views: {
      [_ in never]: never;
    };
    Functions: {
      "claim_knowledge_embeddings": {
        Args: {
          "collections"?: (string)[];
          "lease"?: string;
          "max_chunks"?: number;
          "model": string;
          "worker"?: string;
        };
        Returns: {
          "attempt": number;
          "chunk_id": string;
          "collection": string;
          "content": string;
          "content_hash": string;
          "dimensions": number;
        }[];
      };
      "count_matching_knowledge_chunks": { Args: { "search": Json }; Returns: number };
      "count_my_pending_knowledge_embeddings": { Args: { "search"?: Json }; Returns: number };
      "count_pending_knowledge_embeddings": { Args: { "search"?: Json }; Returns: number };
      "delete_knowledge_document": { Args: { "document_key": string }; Returns: number };
      "delete_knowledge_judgments": {
        Args: {
          "collection"?: string;
          "is_generated"?: boolean;
          "judged_by"?: string;
          "question"?: string;
        };
        Returns: number;
      };
      "delete_knowledge_owner": {
        Args: { "owner": string };
        Returns: {
          "chunks_deleted": number;
          "documents_deleted": number;
        }[];
      };
      "delete_my_knowledge_document": { Args: { "document": string }; Returns: boolean };
      "describe_knowledge_document": {
        Args: {
          "chunk_count"?: number;
          "chunk_id"?: string;
          "chunk_offset"?: number;
          "document_id"?: string;
          "document_key"?: string;
        };
        Returns: Json;
      };
      "estimate_hybrid_search": { Args: { "search": Json }; Returns: Json };
      "explain_empty_knowledge_search": { Args: { "search": Json }; Returns: Json };
      "explain_hybrid_search": { Args: { "search": Json }; Returns: Json };
      "explain_missing_knowledge_chunk": {
        Args: { "chunk_id"?: string; "document_key"?: string; "search": Json };
        Returns: Json;
      };
      "explain_my_empty_knowledge_search": { Args: { "search": Json }; Returns: Json };
      "explain_public_empty_knowledge_search": { Args: { "search": Json }; Returns: Json };
      "facet_knowledge_chunks": {
        Args: { "facet_limit"?: number; "facets"?: (string)[]; "search"?: Json };
        Returns: {
          "count": number;
          "facet": string;
          "value": Json;
        }[];
      };
      "facet_my_knowledge_chunks": {
        Args: { "facet_limit"?: number; "facets"?: (string)[]; "search"?: Json };
        Returns: {
          "count": number;
          "facet": string;
          "value": Json;
        }[];
      };
      "failed_knowledge_embeddings": {
        Args: { "max_rows"?: number };
        Returns: {
          "attempts": number;
          "chunk_id": string;
          "collection": string;
          "document_key": string;
          "failed_at": string;
          "model": string;
          "reason": string;
        }[];
      };
      "hybrid_search_knowledge_chunks": {
        Args: {
          "as_of"?: string;
          "boosts"?: Json;
          "collections"?: (string)[];
          "date_from"?: string;
          "date_to"?: string;
          "diversity"?: number;
          "embedding_from_text"?: boolean;
          "filter_type"?: string;
          "filters"?: Json;
          "formulations"?: Json;
          "fusion"?: string;
          "like_ids"?: (string)[];
          "match_count"?: number;
          "match_offset"?: number;
          "match_threshold"?: number;
          "max_per_document"?: number;
          "merge_duplicates"?: boolean;
          "min_confidence"?: number;
          "neighbor_window"?: number;
          "on_bad_embedding"?: string;
          "one_per_document"?: boolean;
          "order_by"?: string;
          "pool_size"?: number;
          "prefix_last"?: boolean;
          "public_only"?: boolean;
          "query_embedding"?: string;
          "query_text"?: string;
          "ranked_lists"?: Json;
          "recency_half_life"?: number;
          "required_filters"?: Json;
          "rrf_k"?: number;
          "search_mode"?: string;
          "snippet"?: boolean;
          "snippets"?: number;
          "text_weight"?: number;
          "vector_weight"?: number;
          "viewer_groups"?: (string)[];
          "viewer_id"?: string;
        };
        Returns: Database["public"]["CompositeTypes"]["knowledge_search_hit"][];
        SetofOptions: {
          from: "*";
          to: "knowledge_search_hit";
          isOneToOne: false;
          isSetofReturn: true;
        };
      };
      "hybrid_search_knowledge_chunks_batch": {
        Args: { "queries": Json };
        Returns: {
          "answer_confidence": number;
          "chunk_index": number;
          "collection": string;
          "collections": (string)[];
          "confidence": number;
          "content": string;
          "context": string;
          "document_chunks": number;
          "document_date": string;
          "document_id": string;
          "duplicates": number;
          "external_key": string;
          "heading": string;
          "id": string;
          "knowledge_type": string;
          "match_type": string;
          "matched_terms": (string)[];
          "metadata": Json;
          "notes": Json;
          "pool_ended": boolean;
          "query_index": number;
          "rrf_score": number;
          "sensitivity": string;
          "similarity": number;
          "snippet": string;
          "source_origin": string;
          "source_row": Json;
          "source_url": string;
          "text_rank": number;
          "text_score": number;
          "title": string;
          "total_count": number;
          "vector_rank": number;
        }[];
      };
      "knowledge_content_hash": { Args: { "content": string; "heading": string }; Returns: string };
      "knowledge_corpus_overview": { Args: Record<PropertyKey, never>; Returns: Json };
      "knowledge_embedding_models": {
        Args: Record<PropertyKey, never>;
        Returns: {
          "chunks": number;
          "dimensions": number;
          "model": string;
        }[];
      };
      "knowledge_search_health": { Args: Record<PropertyKey, never>; Returns: Json };
      "knowledge_viewer_groups": { Args: Record<PropertyKey, never>; Returns: (string)[] };
      "list_knowledge_documents": {
        Args: {
          "after_key"?: string;
          "in_collection"?: string;
          "in_state"?: string;
          "named"?: string;
          "of_type"?: string;
          "page_size"?: number;
        };
        Returns: Database["public"]["CompositeTypes"]["knowledge_document_summary"][];
        SetofOptions: {
          from: "*";
          to: "knowledge_document_summary";
          isOneToOne: false;
          isSetofReturn: true;
        };
      };
      "list_knowledge_judgments": {
        Args: { "by_user"?: string; "in_collection"?: string };
        Returns: {
          "chunk_id": string;
          "collection": string;
          "document_key": string;
          "grade": number;
          "is_generated": boolean;
          "judged_at": string;
          "judged_by": string;
          "question": string;
        }[];
      };
      "list_knowledge_settings": {
        Args: Record<PropertyKey, never>;
        Returns: {
          "bm25_b": number;
          "bm25_k1": number;
          "changes": (string)[];
          "collection": string;
          "embedding_model": string;
          "fusion": string;
          "heading_weight": number;
          "measured": Json;
          "text_keys": (string)[];
          "text_weight": number;
          "title_weight": number;
          "updated_at": string;
          "vector_weight": number;
        }[];
      };
      "list_my_knowledge_documents": {
        Args: {
          "after_key"?: string;
          "include_groups"?: boolean;
          "include_public"?: boolean;
          "page_size"?: number;
        };
        Returns: Database["public"]["CompositeTypes"]["knowledge_own_document"][];
        SetofOptions: {
          from: "*";
          to: "knowledge_own_document";
          isOneToOne: false;
          isSetofReturn: true;
        };
      };
      "list_visible_knowledge_documents": {
        Args: {
          "after_key"?: string;
          "collections"?: (string)[];
          "page_size"?: number;
          "public_only"?: boolean;
          "required_filters"?: Json;
          "viewer_groups"?: (string)[];
          "viewer_id"?: string;
        };
        Returns: Database["public"]["CompositeTypes"]["knowledge_own_document"][];
        SetofOptions: {
          from: "*";
          to: "knowledge_own_document";
          isOneToOne: false;
          isSetofReturn: true;
        };
      };
      "match_knowledge_chunks": {
        Args: {
          "filter_type"?: string;
          "match_count"?: number;
          "match_threshold"?: number;
          "public_only"?: boolean;
          "query_embedding": string;
          "required_filters"?: Json;
          "viewer_groups"?: (string)[];
          "viewer_id"?: string;
        };
        Returns: {
          "chunk_index": number;
          "content": string;
          "document_id": string;
          "id": string;
          "knowledge_type": string;
          "metadata": Json;
          "similarity": number;
          "source_origin": string;
        }[];
      };
      "missing_knowledge_embeddings": {
        Args: { "content_hashes": (string)[]; "model": string };
        Returns: (string)[];
      };
      "pending_knowledge_embeddings": {
        Args: Record<PropertyKey, never>;
        Returns: {
          "claimed": number;
          "collection": string;
          "failed": number;
          "model": string;
          "oldest": string;
          "pending": number;
        }[];
      };
      "purge_knowledge_chunks": { Args: { "older_than"?: string }; Returns: number };
      "read_knowledge_document": {
        Args: {
          "chunk_count"?: number;
          "chunk_offset"?: number;
          "collections"?: (string)[];
          "document": string;
          "public_only"?: boolean;
          "required_filters"?: Json;
          "viewer_groups"?: (string)[];
          "viewer_id"?: string;
        };
        Returns: Json;
      };
      "read_my_knowledge_document": {
        Args: { "chunk_count"?: number; "chunk_offset"?: number; "document": string };
        Returns: Json;
      };
      "record_knowledge_queries": {
        Args: { "max_age"?: string; "most_rows"?: number; "queries": Json };
        Returns: number;
      };
      "refresh_knowledge_statistics": { Args: Record<PropertyKey, never>; Returns: boolean };
      "refresh_knowledge_tenants": { Args: Record<PropertyKey, never>; Returns: number };
      "report_knowledge_queries": { Args: { "most"?: number; "since"?: string }; Returns: Json };
      "reset_knowledge_settings": { Args: { "collection"?: string }; Returns: boolean };
      "retry_knowledge_embeddings": { Args: { "model"?: string }; Returns: number };
      "rewrite_knowledge_chunks": { Args: { "most"?: number }; Returns: number };
      "sample_knowledge_embeddings": {
        Args: { "most"?: number };
        Returns: {
          "chunk_id": string;
          "collection": string;
          "document_key": string;
          "embedding": (number)[];
          "knowledge_type": string;
          "language": string;
          "source_origin": string;
          "title": string;
        }[];
      };
      "search_knowledge_chunks_fulltext": {
        Args: {
          "filter_type"?: string;
          "match_count"?: number;
          "public_only"?: boolean;
          "query_text": string;
          "required_filters"?: Json;
          "search_mode"?: string;
          "viewer_groups"?: (string)[];
          "viewer_id"?: string;
        };
        Returns: {
          "chunk_index": number;
          "content": string;
          "document_id": string;
          "id": string;
          "knowledge_type": string;
          "metadata": Json;
          "rank": number;
          "source_origin": string;
        }[];
      };
      "search_my_knowledge_chunks": {
        Args: {
          "as_of"?: string;
          "boosts"?: Json;
          "collections"?: (string)[];
          "date_from"?: string;
          "date_to"?: string;
          "diversity"?: number;
          "embedding_from_text"?: boolean;
          "filter_type"?: string;
          "filters"?: Json;
          "formulations"?: Json;
          "fusion"?: string;
          "like_ids"?: (string)[];
          "match_count"?: number;
          "match_offset"?: number;
          "match_threshold"?: number;
          "max_per_document"?: number;
          "merge_duplicates"?: boolean;
          "min_confidence"?: number;
          "neighbor_window"?: number;
          "on_bad_embedding"?: string;
          "one_per_document"?: boolean;
          "order_by"?: string;
          "pool_size"?: number;
          "prefix_last"?: boolean;
          "public_only"?: boolean;
          "query_embedding"?: string;
          "query_text"?: string;
          "recency_half_life"?: number;
          "required_filters"?: Json;
          "rrf_k"?: number;
          "search_mode"?: string;
          "snippet"?: boolean;
          "snippets"?: number;
          "text_weight"?: number;
          "vector_weight"?: number;
        };
        Returns: Database["public"]["CompositeTypes"]["knowledge_search_hit"][];
        SetofOptions: {
          from: "*";
          to: "knowledge_search_hit";
          isOneToOne: false;
          isSetofReturn: true;
        };
      };
      "search_public_knowledge_chunks": {
        Args: {
          "as_of"?: string;
          "boosts"?: Json;
          "collections"?: (string)[];
          "date_from"?: string;
          "date_to"?: string;
          "diversity"?: number;
          "embedding_from_text"?: boolean;
          "filter_type"?: string;
          "filters"?: Json;
          "formulations"?: Json;
          "fusion"?: string;
          "like_ids"?: (string)[];
          "match_count"?: number;
          "match_offset"?: number;
          "match_threshold"?: number;
          "max_per_document"?: number;
          "merge_duplicates"?: boolean;
          "min_confidence"?: number;
          "neighbor_window"?: number;
          "on_bad_embedding"?: string;
          "one_per_document"?: boolean;
          "order_by"?: string;
          "pool_size"?: number;
          "prefix_last"?: boolean;
          "query_embedding"?: string;
          "query_text"?: string;
          "recency_half_life"?: number;
          "required_filters"?: Json;
          "rrf_k"?: number;
          "search_mode"?: string;
          "snippet"?: boolean;
          "snippets"?: number;
          "text_weight"?: number;
          "vector_weight"?: number;
        };
        Returns: Database["public"]["CompositeTypes"]["knowledge_search_hit"][];
        SetofOptions: {
          from: "*";
          to: "knowledge_search_hit";
          isOneToOne: false;
          isSetofReturn: true;
        };
      };
      "search_visible_knowledge_chunks": {
        Args: { "search": Json };
        Returns: Database["public"]["CompositeTypes"]["knowledge_search_hit"][];
        SetofOptions: {
          from: "*";
          to: "knowledge_search_hit";
          isOneToOne: false;
          isSetofReturn: true;
        };
      };
      "set_knowledge_fields": {
        Args: {
          "collection"?: string;
          "heading_weight"?: number;
          "text_keys"?: (string)[];
          "title_weight"?: number;
        };
        Returns: {
          "bm25_b": number | null;
          "bm25_k1": number | null;
          "collection": string;
          "embedding_model": string | null;
          "fusion": string | null;
          "heading_weight": number | null;
          "measured": Json | null;
          "text_keys": (string)[] | null;
          "text_weight": number;
          "title_weight": number | null;
          "updated_at": string;
          "vector_weight": number;
        };
        SetofOptions: {
          from: "*";
          to: "knowledge_settings";
          isOneToOne: true;
          isSetofReturn: false;
        };
      };
      "set_knowledge_judgments": { Args: { "judgments": Json }; Returns: number };
      "set_knowledge_settings": {
        Args: {
          "bm25_b"?: number;
          "bm25_k1"?: number;
          "collection"?: string;
          "dimensions"?: number;
          "embedding_model"?: string;
          "fusion"?: string;
          "measured_on"?: string;
          "text_weight"?: number;
          "vector_weight"?: number;
        };
        Returns: {
          "bm25_b": number | null;
          "bm25_k1": number | null;
          "collection": string;
          "embedding_model": string | null;
          "fusion": string | null;
          "heading_weight": number | null;
          "measured": Json | null;
          "text_keys": (string)[] | null;
          "text_weight": number;
          "title_weight": number | null;
          "updated_at": string;
          "vector_weight": number;
        };
        SetofOptions: {
          from: "*";
          to: "knowledge_settings";
          isOneToOne: true;
          isSetofReturn: false;
        };
      };
      "store_knowledge_embeddings": {
        Args: { "model": string; "results": Json; "worker"?: string };
        Returns: {
          "chunks": number;
          "failed": number;
          "outdated": number;
          "released": number;
          "repeated": number;
          "retried": number;
          "stored": number;
        }[];
      };
      "supersede_knowledge_document": {
        Args: { "at"?: string; "new": string; "old": string };
        Returns: number;
      };
      "upsert_knowledge_document": {
        Args: { "chunks": Json; "document": Json; "fields"?: string };
        Returns: {
          "chunks_added": number;
          "chunks_changed": number;
          "chunks_removed": number;
          "chunks_unchanged": number;
          "document_id": string;
          "embeddings_missing": number;
          "embeddings_reused": number;
        }[];
      };
    };
    Enums: {
      [_ in never]: never;
    };
    CompositeTypes: {
      "knowledge_document_summary": {
        "id": string | null;
        "external_key": string | null;
        "title": string | null;
        "state": string | null;
        "collection": string | null;
        "knowledge_type": string | null;
        "language": string | null;
        "source_origin": string | null;
        "source_url": string | null;
        "document_date": string | null;
        "visibility": string | null;
        "owner_id": string | null;
        "chunks": number | null;
        "pending": number | null;
        "inactive": number | null;
        "bytes": number | null;
        "created_at": string | null;
        "updated_at": string | null;
      };
      "knowledge_own_document": {
        "id": string | null;
        "external_key": string | null;
        "title": string | null;
        "knowledge_type": string | null;
        "collection": string | null;
        "source_origin": string | null;
        "source_url": string | null;
        "document_date": string | null;
        "visibility": string | null;
        "is_own": boolean | null;
        "chunk_count": number | null;
        "created_at": string | null;
        "updated_at": string | null;
      };
      "knowledge_search_hit": {
        "id": string | null;
        "content": string | null;
        "knowledge_type": string | null;
        "document_id": string | null;
        "chunk_index": number | null;
        "source_origin": string | null;
        "metadata": Json | null;
        "rrf_score": number | null;
        "vector_rank": number | null;
        "text_rank": number | null;
        "similarity": number | null;
        "text_score": number | null;
        "match_type": string | null;
        "matched_terms": (string)[] | null;
        "title": string | null;
        "source_url": string | null;
        "collection": string | null;
        "document_date": string | null;
        "snippet": string | null;
        "context": string | null;
        "total_count": number | null;
        "pool_ended": boolean | null;
        "heading": string | null;
        "sensitivity": string | null;
        "collections": (string)[] | null;
        "document_chunks": number | null;
        "external_key": string | null;
        "source_row": Json | null;
        "confidence": number | null;
        "notes": Json | null;
        "answer_confidence": number | null;
        "duplicates": number | null;
      };
    };
  };
};

type DatabaseWithoutInternals = Omit<Database, "__InternalSupabase">;

type DefaultSchema = DatabaseWithoutInternals[Extract<keyof Database, "public">];

export type Tables<
  DefaultSchemaTableNameOrOptions extends
    | keyof (DefaultSchema["Tables"] & DefaultSchema["Views"])
    | { schema: keyof DatabaseWithoutInternals },
  TableName extends DefaultSchemaTableNameOrOptions extends {
    schema: keyof DatabaseWithoutInternals;
  } ? keyof (
      & DatabaseWithoutInternals[DefaultSchemaTableNameOrOptions["schema"]]["Tables"]
      & DatabaseWithoutInternals[DefaultSchemaTableNameOrOptions["schema"]]["Views"]
    )
    : never = never,
> = DefaultSchemaTableNameOrOptions extends { schema: keyof DatabaseWithoutInternals } ? (
    & DatabaseWithoutInternals[DefaultSchemaTableNameOrOptions["schema"]]["Tables"]
    & DatabaseWithoutInternals[DefaultSchemaTableNameOrOptions["schema"]]["Views"]
  )[TableName] extends {
    Row: infer R;
  } ? R
  : never
  : DefaultSchemaTableNameOrOptions extends keyof (DefaultSchema["Tables"] & DefaultSchema["Views"])
    ? (DefaultSchema["Tables"] & DefaultSchema["Views"])[DefaultSchemaTableNameOrOptions] extends {
      Row: infer R;
    } ? R
    : never
  : never;

export type TablesInsert<
  DefaultSchemaTableNameOrOptions extends
    | keyof DefaultSchema["Tables"]
    | { schema: keyof DatabaseWithoutInternals },
  TableName extends DefaultSchemaTableNameOrOptions extends {
    schema: keyof DatabaseWithoutInternals;
  } ? keyof DatabaseWithoutInternals[DefaultSchemaTableNameOrOptions["schema"]]["Tables"]
    : never = never,
> = DefaultSchemaTableNameOrOptions extends { schema: keyof DatabaseWithoutInternals }
  ? DatabaseWithoutInternals[DefaultSchemaTableNameOrOptions["schema"]]["Tables"][TableName] extends
    {
      Insert: infer I;
    } ? I
  : never
  : DefaultSchemaTableNameOrOptions extends keyof DefaultSchema["Tables"]
    ? DefaultSchema["Tables"][DefaultSchemaTableNameOrOptions] extends {
      Insert: infer I;
    } ? I
    : never
  : never;

export type TablesUpdate<
  DefaultSchemaTableNameOrOptions extends
    | keyof DefaultSchema["Tables"]
    | { schema: keyof DatabaseWithoutInternals },
  TableName extends DefaultSchemaTableNameOrOptions extends {
    schema: keyof DatabaseWithoutInternals;
  } ? keyof DatabaseWithoutInternals[DefaultSchemaTableNameOrOptions["schema"]]["Tables"]
    : never = never,
> = DefaultSchemaTableNameOrOptions extends { schema: keyof DatabaseWithoutInternals }
  ? DatabaseWithoutInternals[DefaultSchemaTableNameOrOptions["schema"]]["Tables"][TableName] extends
    {
      Update: infer U;
    } ? U
  : never
  : DefaultSchemaTableNameOrOptions extends keyof DefaultSchema["Tables"]
    ? DefaultSchema["Tables"][DefaultSchemaTableNameOrOptions] extends {
      Update: infer U;
    } ? U
    : never
  : never;

export type Enums<
  DefaultSchemaEnumNameOrOptions extends
    | keyof DefaultSchema["Enums"]
    | { schema: keyof DatabaseWithoutInternals },
  EnumName extends DefaultSchemaEnumNameOrOptions extends {
    schema: keyof DatabaseWithoutInternals;
  } ? keyof DatabaseWithoutInternals[DefaultSchemaEnumNameOrOptions["schema"]]["Enums"]
    : never = never,
> = DefaultSchemaEnumNameOrOptions extends { schema: keyof DatabaseWithoutInternals }
  ? DatabaseWithoutInternals[DefaultSchemaEnumNameOrOptions["schema"]]["Enums"][EnumName]
  : DefaultSchemaEnumNameOrOptions extends keyof DefaultSchema["Enums"]
    ? DefaultSchema["Enums"][DefaultSchemaEnumNameOrOptions]
  : never;

export type CompositeTypes<
  PublicCompositeTypeNameOrOptions extends
    | keyof DefaultSchema["CompositeTypes"]
    | { schema: keyof DatabaseWithoutInternals },
  CompositeTypeName extends PublicCompositeTypeNameOrOptions extends {
    schema: keyof DatabaseWithoutInternals;
  } ? keyof DatabaseWithoutInternals[PublicCompositeTypeNameOrOptions["schema"]]["CompositeTypes"]
    : never = never,
> = PublicCompositeTypeNameOrOptions extends { schema: keyof DatabaseWithoutInternals }
  ? DatabaseWithoutInternals[PublicCompositeTypeNameOrOptions["schema"]]["CompositeTypes"][
    CompositeTypeName
  ]
  : PublicCompositeTypeNameOrOptions extends keyof DefaultSchema["CompositeTypes"]
    ? DefaultSchema["CompositeTypes"][PublicCompositeTypeNameOrOptions]
  : never;

export const Constants = {
  "public": {
    Enums: {},
  },
} as const;
