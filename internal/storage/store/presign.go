package store

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/minio/minio-go/v7"

	"codehub/internal/storage/transfer"
)

func (s *S3) presign(ctx context.Context, method, key string, expires time.Duration, params url.Values) (string, error) {
	u, err := s.core.Presign(ctx, method, s.bucket, s.prefix+key, expires, params)
	if err != nil {
		return "", unavailable(ctx, "sign a URL", err)
	}
	return u.String(), nil
}

func (s *S3) presignPart(ctx context.Context, key, uploadID string, number int, expires time.Duration) (string, error) {
	return s.presign(ctx, http.MethodPut, key, expires, url.Values{"partNumber": {strconv.Itoa(number)}, "uploadId": {uploadID}})
}

// PresignGet returns the URL for transfer.Client.Get.
func (s *S3) PresignGet(ctx context.Context, key string, expires time.Duration) (string, error) {
	if err := checkKey(key); err != nil {
		return "", err
	}
	return s.presign(ctx, http.MethodGet, key, expires, nil)
}

// PresignPut returns the URL for transfer.Client.Put.
func (s *S3) PresignPut(ctx context.Context, key string, expires time.Duration) (string, error) {
	if err := checkKey(key); err != nil {
		return "", err
	}
	return s.presign(ctx, http.MethodPut, key, expires, nil)
}

// PresignUpload returns the ticket for transfer.Client.Upload. AbortIncomplete
// removes an upload that is never completed.
func (s *S3) PresignUpload(ctx context.Context, key string, maxSize int64, expires time.Duration) (*transfer.Ticket, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	ticket, err := s.begin(ctx, key, transfer.PartSize(maxSize), expires)
	if err != nil {
		return nil, err
	}
	n := min(max((maxSize+ticket.PartSize-1)/ticket.PartSize, 1), transfer.MaxParts)
	ticket.Parts = make([]string, n)
	for i := range ticket.Parts {
		if ticket.Parts[i], err = s.presignPart(ctx, key, ticket.UploadID, i+1, expires); err != nil {
			return nil, err
		}
	}
	return ticket, nil
}

// begin starts a multipart upload and returns its ticket without parts.
func (s *S3) begin(ctx context.Context, key string, part int64, expires time.Duration) (*transfer.Ticket, error) {
	id, err := s.core.NewMultipartUpload(ctx, s.bucket, s.prefix+key, minio.PutObjectOptions{})
	if err != nil {
		return nil, unavailable(ctx, "put "+key, err)
	}
	ticket := &transfer.Ticket{UploadID: id, PartSize: part}
	params := url.Values{"uploadId": {id}}
	for _, step := range []struct {
		to     *string
		method string
		params url.Values
	}{
		{&ticket.Complete, http.MethodPost, params},
		{&ticket.Abort, http.MethodDelete, params},
		{&ticket.Head, http.MethodHead, nil},
	} {
		if *step.to, err = s.presign(ctx, step.method, key, expires, step.params); err != nil {
			return nil, err
		}
	}
	return ticket, nil
}
