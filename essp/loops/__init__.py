"""What is behind `essp.Loader`: a job that feeds loops of the user's own, and how a loop takes part in it.

running_job    the job: of this process, or of a cluster
source         where loaders find it, or start it
membership     a loop comes, gives signs of life, and leaves
clips          its batches, over a trainer's own intake
clips_process  the same from a job in a process of its own (clips_child, clips_messages), for loops on GPUs
feed           batches on the loop's device
"""
