"""The workbench: a web application for the people who are responsible for a search.

It shows what a database answers and stores judgments and settings. It does not rank, fuse or filter
anything itself. `app` has the application, `pages` one module per page, `access` who may use it.
"""
