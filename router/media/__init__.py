"""Images, sounds and videos of requests, until they are bytes for a worker: what a part names,
which addresses may be asked, fetching, and what the bytes are."""
