-- new_install: the fusion of a new install, for searches that name none. Of the blocks in
-- registry.json alone: `init` writes it into 004.

insert into public.knowledge_settings (collection, fusion) values ('', 'auto');
