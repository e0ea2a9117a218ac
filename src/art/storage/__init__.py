"""Models in a bucket or any other folder: pushed, pulled, archived, through `fsspec`.

    {bucket}/{prefix}/{project}/models/{name}/files.json            size and sha256 of the files beside it
    {bucket}/{prefix}/{project}/models/{name}/history.jsonl, ...
    {bucket}/{prefix}/{project}/models/{name}/checkpoints/0007/     one step, once its manifest is there
    {bucket}/{prefix}/{project}/models/{name}/zipped-steps/0007.zip an adapter for a provider

A bucket is a name (of S3, or of whatever answers at `AWS_ENDPOINT_URL`) or any URL that fsspec knows:
`s3://`, `gs://`, `file://`, `memory://`. Nothing here is imported before it is used.
"""
