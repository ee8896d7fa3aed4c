// Package transfer moves objects from and to an S3 bucket over HTTP, with
// pre-signed URLs and without the bucket's credentials: this is all that a
// storage job has.
package transfer
