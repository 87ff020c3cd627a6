"""Which module has an object of the SQL, for the tests that list objects of core and modules."""

from collections.abc import Collection, Iterable
from functools import cache
from typing import Any

import pytest

from tools import schema_files


@cache
def _modules() -> dict[str, str | None]:
    files = schema_files.read()
    return {name: file.module for name, file in schema_files.homes(files).items()}


def module_of(name: str) -> str | None:
    """Return the module that creates a table, type or function of schema public; None for core."""
    return _modules()[f"public.{name}"]


def in_its_module(name: str, *values: Any) -> Any:
    """Return a parametrised case about an object, which needs the module that has the object."""
    module = module_of(name)
    marks = [] if module is None else [pytest.mark.module(module)]
    return pytest.param(name, *values, marks=marks)


def present(names: Iterable[str], modules: Collection[str]) -> list[str]:
    """Return the names of core's objects and of those that these modules have."""
    return [name for name in names if module_of(name) in {None, *modules}]
