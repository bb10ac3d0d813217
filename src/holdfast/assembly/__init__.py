"""A node, put together from an app and the services of a config; loading of apps."""
