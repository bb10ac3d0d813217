"""The services behind the ports: one folder per service, one file per port."""
