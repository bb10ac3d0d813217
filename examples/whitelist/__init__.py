"""Face whitelists of door terminals: a back office changes who may enter, and all terminals come to agree."""
