"""The embedding cache and the results store; both survive a kill at any moment."""

from __future__ import annotations

from evalharness.store.files import atomic_write, cache_folder, file_digest
from evalharness.store.results import ResultsReader, RunWriter
from evalharness.store.views import StoredView, ViewCache, ViewWriter

__all__ = ["ResultsReader", "RunWriter", "StoredView", "ViewCache", "ViewWriter", "atomic_write", "cache_folder", "file_digest"]
