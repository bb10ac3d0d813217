"""What operators see and do. The command line and the console call the same functions, and show what they
return each in its own way: nothing here prints or knows of pages."""
