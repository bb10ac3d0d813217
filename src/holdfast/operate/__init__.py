"""The functions by which operators see and act. The command line and the console call the same ones, and show
what they return each in its own way: nothing here prints or knows of pages."""
