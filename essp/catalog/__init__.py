"""Catalogs: what videos a data set has, with their facts.

build.py                  lists a source, reads new and changed files, writes the rows; `journal.py`: resumes
pool.py                   the same reading by the decoders of a cluster; `progress.py`: how far it is
sources.py                the entrance to the layouts: what a source lists before a video is opened
layouts.py                all layouts of data sets, in the order in which they are tried
layout.py                 what a layout is, and the names for `--source`
entry.py                  what a layout says about a video
found.py                  the files of a source, listed once for all layouts
spool.py                  millions of entries and rows in little memory, and their order
folder_source.py          layout: class folders, UCF-101
csv_source.py             layout: a user's own list; `list_rows.py`: its rows in any format; `csv_views.py`: views
action_sets.py            layout: KTH, HMDB51, Hollywood2, CCV and FCVID as published
foreign_lists.py          layout: Kinetics; lists that are refused by name, with what to do instead
json_lists.py             layout: Something-Something, ActivityNet
mmaction2.py              layout: lists of mmaction2 and TSN
lerobot.py                layout: episodes of robots; `lerobot_folder.py`: the files of LeRobot
mcap.py                   layout: recordings of robots; `mcap_recording.py`: one of them; `copies.py`: their cameras
hugging_face.py           layout: Parquet and Arrow with the videos in them; `hugging_face_schema.py`: their columns
parquet_pages.py          where in a Parquet file the bytes of a video are
video_folder.py           layout: a VideoFolder of Hugging Face
shards.py                 layout: tar archives of webdataset
background.py             rows for what the source does not label
merging.py                several catalogs in one
relocation.py             a catalog whose videos were moved
summary.py                the figures of `essp catalog show`
"""
