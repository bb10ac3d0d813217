"""What stands behind the ports: one folder a service, one file a port."""
