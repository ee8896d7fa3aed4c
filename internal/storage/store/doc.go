// Package store keeps objects in a bucket: a folder or S3.
package store
