"""Reports: read a query's result, format it as the customer ordered, deliver it to the customer's server.

``order`` says what was ordered, ``report`` turns it into streams of bytes: ``sources`` read, ``formats``
write. Memory stays flat whatever the size, no temporary file is made, and the same order of the same sources
gives the same bytes. ``names`` makes the files' remote names.
"""
