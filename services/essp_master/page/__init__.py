"""The files of the page at `/`: HTML, CSS and JavaScript, served by `services/essp_master/api/page.py`."""
