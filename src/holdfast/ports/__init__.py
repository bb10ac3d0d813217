"""The ports: what a node needs of services. Each port is one file with a Protocol and its records.

A port declares how its adapters may differ (``seq_kind``, ``max_batch``, ``frees_on_evict``), so that no code
asks which adapter it has. A call that fails raises an error of :mod:`holdfast.errors`: ``Unavailable`` if
nothing happened, ``OutcomeUnknown`` if it may have taken effect.
"""
