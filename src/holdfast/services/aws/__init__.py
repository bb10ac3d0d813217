"""Amazon's services, and what speaks as they do: SQS as queue, S3 for objects."""
