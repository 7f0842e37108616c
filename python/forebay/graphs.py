"""Features of a graph's nodes in files, for PyTorch Geometric's loaders.

`pip install torch torch_geometric`; nothing else of Forebay imports them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from forebay.datasets import Rows
from forebay.errors import MachineError, RequestError
from forebay.reader import Path

try:
    from torch_geometric.data import FeatureStore as Interface
    from torch_geometric.data import TensorAttr
except ImportError as missing:
    found = f"PyTorch Geometric is missing: {missing}"
    raise MachineError("forebay.graphs", found, "pip install torch torch_geometric") from None


class FeatureStore(Interface):
    """`torch_geometric.data.FeatureStore` over files, with one row per node or edge.

        store = FeatureStore(device="cuda:0", path="mapped")
        store.add("paper", "x", "papers.bin", (128,), torch.float32)
        loader = NeighborLoader((store, graph), …)

    `device` is where batches go, `path` as for forebay.open. Files are read and never written: `put_tensor` and
    `update_tensor` return False. Batches for a GPU are read where the loader's process uses it:
    `NeighborLoader(…, num_workers=0)`, or `filter_per_worker=False`.
    """

    def __init__(self, device: Any = "cpu", path: str = "auto") -> None:
        super().__init__()
        # The base class keeps attributes of its own from being taken for views.
        self.__dict__.update(_device=device, _path=path, _tables={})

    def add(
        self,
        group: Any,
        name: str,
        files: Path | Sequence[Path],
        shape: Sequence[int],
        dtype: Any,
        *,
        start: int = 0,
    ) -> FeatureStore:
        """Rows of these files are attribute `name` of the nodes of `group` (None: of a graph with one kind)."""
        self._tables[group, name] = Rows(files, shape, dtype, path=self._path, start=start, device=self._device)
        return self

    def close(self) -> None:
        """Closes the files."""
        for rows in self._tables.values():
            rows.close()

    def update_tensor(self, tensor: Any, *args: Any, **kwargs: Any) -> bool:
        """False: the base class would remove what it can't put back."""
        return False

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        return False

    def _get_tensor(self, attr: TensorAttr) -> Any:
        rows = self._rows(attr)
        index = attr.index
        if str(getattr(index, "dtype", "")) in ("bool", "torch.bool"):
            # A mask of all nodes, such as those of training.
            if tuple(index.shape) != (len(rows),):
                found = f"a mask of shape {tuple(index.shape)}, and there are {len(rows)} rows"
                raise RequestError(f"features {attr.attr_name!r} of {attr.group_name!r}", found, "a truth value for each row")
            index = index.nonzero()[0] if str(index.dtype) == "bool" else index.nonzero().flatten()
        return rows[slice(None) if index is None else index]

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        rows = self._tables.pop((attr.group_name, attr.attr_name), None)
        if rows is not None:
            rows.close()
        return rows is not None

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...]:
        rows = self._rows(attr)
        return (len(rows), *rows.shape)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        return [TensorAttr(group, name) for group, name in self._tables]

    def _rows(self, attr: TensorAttr) -> Rows:
        found: Rows | None = self._tables.get((attr.group_name, attr.attr_name))
        if found is None:
            known = ", ".join(f"{group!r}, {name!r}" for group, name in self._tables) or "none"
            asked = f"features {attr.attr_name!r} of {attr.group_name!r}"
            raise RequestError(asked, f"there are {known}", "store.add(group, name, files, shape, dtype)")
        return found

    def __repr__(self) -> str:
        names = [os.path.basename(rows.names[0]) for rows in self._tables.values()]
        return f"FeatureStore({', '.join(names)})"
