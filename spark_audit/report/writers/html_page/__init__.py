"""report.html: the report as one page that needs no network and no other program."""
