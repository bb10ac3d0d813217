"""The console: one web application that shows a cluster in a browser, and changes what an operator wants
changed."""
