"""What a node needs of services: one file a port, a Protocol and its records.

A port declares how its adapters may differ (``seq_kind``, ``max_batch``, ``frees_on_evict``), so that
nobody asks an adapter for its name. Every call that can fail says so with an error of
:mod:`holdfast.errors`: ``Unavailable`` when nothing happened, ``OutcomeUnknown`` when it may have.
"""
