"""The design that Holdfast replaces, written for the benchmarks: SQS and a Redis lock a video.

Workers poll the queue. A worker that gets a frame of a video nobody owns takes the video's lock; one that
gets a frame of another's video skips it, and the visibility timeout brings it back for somebody. Each lock
is renewed by a thread of its own, frames are processed and deleted one by one, and a video without frames
for a while is released. A frame skipped ``maxReceiveCount`` times goes to the dead letters, healthy as it is.
"""
