"""In which order the objects of an install are dropped: what needs an object goes before it."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from second_brain.errors import ConfigurationError

Object = tuple[str, int]
"""A system catalogue and the oid of an object in it."""
_DEPENDENCIES = """
select classid::regclass::text, objid::bigint, refclassid::regclass::text, refobjid::bigint,
       deptype::text
  from pg_catalog.pg_depend
 where deptype in ('n', 'a', 'i')
   and refobjid >= 16384
"""


@dataclass(frozen=True)
class Node:
    """An object of the install, and how a statement drops it."""

    kind: str
    drop: str
    """The object in a statement: its name, or what follows the kind."""
    table: str | None = None


class Dependencies:
    """The dependencies between the nodes, and the other objects that depend on them."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        nodes: Mapping[Object, Node],
        ignored: Collection[Object] = (),
    ) -> None:
        self._nodes = nodes
        self._parents: dict[Object, list[Object]] = defaultdict(list)
        needs: list[tuple[Object, Object]] = []
        for one, oid, other, other_oid, kind in connection.execute(_DEPENDENCIES).fetchall():
            needing, needed = (one, oid), (other, other_oid)
            if kind == "n":
                needs.append((needing, needed))
            else:
                self._parents[needing].append(needed)
        # A policy and a trigger are nodes, and need their table.
        for node in nodes:
            needs += [(node, parent) for parent in self._parents.get(node, ())]
        self._needed_by: dict[Object, set[Object]] = defaultdict(set)
        foreign: set[Object] = set()
        for needing, needed in needs:
            target = self._node_of(needed)
            if target is None:
                continue
            source = self._node_of(needing)
            if source is None:
                foreign |= {self._top(needing)} - set(ignored)
            elif source != target:
                self._needed_by[target].add(source)
        self.foreign = sorted(foreign)

    def _node_of(self, one: Object) -> Object | None:
        """Return the node that an object is, or belongs to; None if it is foreign."""
        seen: set[Object] = set()
        queue = [one]
        while queue:
            current = queue.pop()
            if current in self._nodes:
                return current
            if current not in seen:
                seen.add(current)
                queue += self._parents.get(current, ())
        return None

    def _top(self, one: Object) -> Object:
        """Return the view of a rule, and the table of a default."""
        while one[0] in ("pg_rewrite", "pg_attrdef") and self._parents.get(one):
            one = self._parents[one][0]
        return one

    def in_order(self) -> Iterator[list[Node]]:
        """Yield the nodes in groups to drop one after the other, dependent objects first."""
        left = dict.fromkeys(self._nodes)
        while left:
            free = [one for one in left if not any(other in left for other in self._needed_by[one])]
            if not free:
                # Objects of one kind can be dropped together although they need each other.
                free = self._circle(left)
            for one in free:
                del left[one]
            yield [self._nodes[one] for one in free]

    def _circle(self, left: Collection[Object]) -> list[Object]:
        reach: dict[Object, set[Object]] = {}
        for one in left:
            seen: set[Object] = set()
            queue = [other for other in self._needed_by[one] if other in left]
            while queue:
                current = queue.pop()
                if current not in seen:
                    seen.add(current)
                    queue += [other for other in self._needed_by[current] if other in left]
            reach[one] = seen
        circle = min((seen for one, seen in reach.items() if one in seen), key=len)
        if len({self._nodes[one].kind for one in circle}) > 1:
            described = ", ".join(self._nodes[one].drop for one in circle)
            raise ConfigurationError(
                f"these objects depend on each other: {described}",
                remedy="Drop one of them by hand, then run it again.",
            )
        return list(circle)
