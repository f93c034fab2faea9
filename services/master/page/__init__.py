"""The files of the page at `/`: HTML, CSS and JavaScript, served by `services/master/api/page.py`."""
