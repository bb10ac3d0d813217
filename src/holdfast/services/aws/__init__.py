"""Amazon's services and compatible ones: SQS as queue, S3 for objects."""
