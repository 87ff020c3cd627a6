"""Tools for people who change this repository. Nothing here is installed with the package."""
