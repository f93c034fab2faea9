"""The jobs behind `essp.Loader`: a job feeds loops of the user, and each loop takes part in it.

running_job    the job, in this process or in a cluster
source         starts or finds the job for loaders
membership     joins a job, sends heartbeats, and leaves
clips          the batches of a loop, through the same intake as a trainer's
clips_process  the same with the job in another process (clips_child, clips_messages), for loops on GPUs
feed           batches on the loop's device
"""
