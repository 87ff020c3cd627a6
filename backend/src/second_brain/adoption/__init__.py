"""Adoption: documents that are made of the rows of a project's own table, and follow them."""
