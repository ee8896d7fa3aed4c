// Package transfer moves objects to and from an S3 bucket over HTTP, with
// pre-signed URLs and without the bucket's credentials, as storage jobs do.
package transfer
