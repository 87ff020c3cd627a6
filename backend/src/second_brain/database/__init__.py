"""Work on a database: embedded server, migrations, checks, index builds and model changes."""
