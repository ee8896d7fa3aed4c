package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"codehub/internal/storage/transfer"
)

// S3 is a Store and Presigner in an S3 bucket, under a prefix. Credentials come
// from the usual environment variables, profile or role.
type S3 struct {
	core     minio.Core
	transfer *transfer.Client
	bucket   string
	prefix   string // empty, or ends with "/"
}

// Presigner signs URLs with which a transfer.Client moves objects without
// credentials. They are valid for the requested time, at most a week and not
// longer than the credentials that signed them (of a role: hours).
type Presigner interface {
	PresignGet(ctx context.Context, key string, expires time.Duration) (string, error)
	// PresignPut is for a small object of known length.
	PresignPut(ctx context.Context, key string, expires time.Duration) (string, error)
	// PresignUpload starts an upload of at most maxSize bytes.
	PresignUpload(ctx context.Context, key string, maxSize int64, expires time.Duration) (*transfer.Ticket, error)
}

const maxTries = 4

var _ Presigner = (*S3)(nil)

// openS3 returns the store of an s3:// URL.
func openS3(u *url.URL, over func(http.RoundTripper) http.RoundTripper) (*S3, error) {
	client := &http.Client{Timeout: 5 * time.Second} // for the machine's role
	return newS3Over(u, credentials.NewChainCredentials([]credentials.Provider{
		&credentials.EnvAWS{},
		&credentials.EnvMinio{},
		&credentials.FileAWSCredentials{},
		&credentials.IAM{Client: client},
	}), over, 0)
}

func newS3(u *url.URL, creds *credentials.Credentials) (*S3, error) {
	return newS3Over(u, creds, nil, 0)
}

// newS3Over applies over to every transport, and fails a response that sends no
// byte for stall; 0: transfer's default.
func newS3Over(u *url.URL, creds *credentials.Credentials, over func(http.RoundTripper) http.RoundTripper, stall time.Duration) (*S3, error) {
	if over == nil {
		over = func(t http.RoundTripper) http.RoundTripper { return t }
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("archive URL %q: %s", u.Redacted(), fmt.Sprintf(format, args...))
	}
	if u.Host == "" || u.User != nil || u.Port() != "" {
		return nil, bad("the format is s3://bucket/prefix; credentials come from the environment, a profile or a role")
	}
	opts := &minio.Options{Creds: creds, Secure: true, MaxRetries: maxTries, Transport: transfer.FailStalled(over(transfer.NewTransport()), stall)}
	host := "s3.amazonaws.com"
	for name, values := range u.Query() {
		value := values[len(values)-1]
		switch name {
		case "endpoint":
			e, err := url.Parse(value)
			if err != nil || e.Host == "" || (e.Scheme != "http" && e.Scheme != "https") || strings.Trim(e.Path, "/") != "" || e.User != nil {
				return nil, bad("invalid endpoint %q; give one like https://host:port", value)
			}
			host, opts.Secure = e.Host, e.Scheme == "https"
		case "region":
			opts.Region = value
		case "path-style":
			path, err := strconv.ParseBool(value)
			if err != nil {
				return nil, bad("path-style must be true or false, not %q", value)
			}
			opts.BucketLookup = minio.BucketLookupDNS
			if path {
				opts.BucketLookup = minio.BucketLookupPath
			}
		default:
			return nil, bad("unknown parameter %q; known are endpoint, region and path-style", name)
		}
	}
	prefix := strings.Trim(u.Path, "/")
	if prefix != "" {
		if err := checkKey(prefix); err != nil {
			return nil, bad("bad prefix")
		}
		prefix += "/"
	}
	client, err := minio.New(host, opts)
	if err != nil {
		return nil, bad("%v", err)
	}
	return &S3{core: minio.Core{Client: client}, transfer: transfer.New(transfer.Options{Transport: over(transfer.NewTransport()), Stall: stall}), bucket: u.Host, prefix: prefix}, nil
}

// kind returns ErrNotFound for a missing object, and otherwise ErrUnavailable:
// errors of the bucket or the credentials say nothing about the object.
func (s *S3) kind(ctx context.Context, doing string, err error) error {
	if minio.ToErrorResponse(err).Code == minio.NoSuchKey {
		return fmt.Errorf("%s: %w", doing, ErrNotFound)
	}
	return unavailable(ctx, doing, err)
}

func (s *S3) Put(ctx context.Context, key string, r io.Reader) (int64, error) {
	if err := checkKey(key); err != nil {
		return 0, err
	}
	doing := "put " + key
	// An object that fits into one part needs no multipart upload.
	var first bytes.Buffer
	n, err := io.CopyN(&first, r, transfer.MinPart)
	if err != nil && err != io.EOF {
		return 0, fmt.Errorf("%s: %w", doing, err)
	}
	if n < transfer.MinPart {
		if _, err := s.core.Client.PutObject(ctx, s.bucket, s.prefix+key, &first, n, minio.PutObjectOptions{}); err != nil {
			return 0, unavailable(ctx, doing, err)
		}
		return n, nil
	}
	ticket, err := s.begin(ctx, key, 2*transfer.MinPart, time.Hour)
	if err != nil {
		return 0, err
	}
	return s.transfer.UploadParts(ctx, doing, ticket, func(ctx context.Context, number int) (string, error) {
		if number > transfer.MaxParts {
			return "", fmt.Errorf("%w: the maximum is %d bytes", transfer.ErrTooLarge, ticket.PartSize*transfer.MaxParts)
		}
		return s.presignPart(ctx, key, ticket.UploadID, number, time.Hour)
	}, io.MultiReader(&first, r))
}

func (s *S3) Get(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	return s.GetRange(ctx, key, offset, -1)
}

func (s *S3) GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	return s.transfer.Download(ctx, "get "+key, func(ctx context.Context) (string, error) {
		return s.presign(ctx, http.MethodGet, key, time.Hour, nil)
	}, offset, length)
}

func (s *S3) Stat(ctx context.Context, key string) (Object, error) {
	if err := checkKey(key); err != nil {
		return Object{}, err
	}
	doing := "stat " + key
	info, err := s.core.Client.StatObject(ctx, s.bucket, s.prefix+key, minio.StatObjectOptions{})
	if err != nil {
		err = s.kind(ctx, doing, err)
		if errors.Is(err, ErrNotFound) {
			// The response to HEAD has no body, so the bucket may be missing.
			if err := s.exists(ctx); err != nil {
				return Object{}, unavailable(ctx, doing, err)
			}
		}
		return Object{}, err
	}
	return Object{Key: key, Size: info.Size, Modified: info.LastModified}, nil
}

func (s *S3) exists(ctx context.Context) error {
	ok, err := s.core.BucketExists(ctx, s.bucket)
	if err == nil && !ok {
		err = fmt.Errorf("bucket %q does not exist", s.bucket)
	}
	return err
}

func (s *S3) Delete(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	doing := "delete " + key
	err := s.core.RemoveObject(ctx, s.bucket, s.prefix+key, minio.RemoveObjectOptions{})
	if err == nil {
		return nil
	}
	if err := s.kind(ctx, doing, err); !errors.Is(err, ErrNotFound) {
		return err
	}
	return nil
}

func (s *S3) List(ctx context.Context, prefix string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		if err := checkPrefix(prefix); err != nil {
			yield(Object{}, err)
			return
		}
		opts := minio.ListObjectsOptions{Prefix: s.prefix + prefix, Recursive: true}
		for o := range s.core.ListObjectsIter(ctx, s.bucket, opts) {
			if o.Err != nil {
				yield(Object{}, unavailable(ctx, "list "+prefix, o.Err))
				return
			}
			key := strings.TrimPrefix(o.Key, s.prefix)
			if strings.HasPrefix(key, probePrefix) || strings.HasSuffix(key, "/") {
				continue // of a running Check, or a folder of another tool
			}
			if !yield(Object{Key: key, Size: o.Size, Modified: o.LastModified}, nil) {
				return
			}
		}
		if ctx.Err() != nil {
			yield(Object{}, unavailable(ctx, "list "+prefix, ctx.Err()))
		}
	}
}

func (s *S3) AbortIncomplete(ctx context.Context, prefix string, age time.Duration, keep func(key string) bool) (int, error) {
	if err := checkPrefix(prefix); err != nil {
		return 0, err
	}
	doing := "sweep " + prefix
	before := time.Now().Add(-age)
	n := 0
	var keyMarker, idMarker string
	for {
		page, err := s.core.ListMultipartUploads(ctx, s.bucket, s.prefix+prefix, keyMarker, idMarker, "", 1000)
		if err != nil {
			return n, unavailable(ctx, doing, err)
		}
		for _, u := range page.Uploads {
			if !strings.HasPrefix(u.Key, s.prefix+prefix) || u.Initiated.After(before) {
				continue
			}
			if keep != nil && keep(strings.TrimPrefix(u.Key, s.prefix)) {
				continue
			}
			err := s.core.AbortMultipartUpload(ctx, s.bucket, u.Key, u.UploadID)
			if err != nil && minio.ToErrorResponse(err).Code != minio.NoSuchUpload {
				return n, unavailable(ctx, doing, err)
			}
			n++
		}
		if !page.IsTruncated {
			return n, nil
		}
		if page.NextKeyMarker == keyMarker && page.NextUploadIDMarker == idMarker {
			return n, unavailable(ctx, doing, errors.New("the bucket lists the same uploads again"))
		}
		keyMarker, idMarker = page.NextKeyMarker, page.NextUploadIDMarker
	}
}

// probePrefix is the prefix of Check's keys; no other key has it.
const probePrefix = ".codehub-check-"

// Check makes each kind of request once that archives need.
func (s *S3) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	where := fmt.Sprintf("archives cannot be kept in the bucket %q at %s", s.bucket, s.core.EndpointURL())
	fail := func(advice string, err error) error { return unavailable(ctx, where+": "+advice, err) }

	if creds, err := s.core.GetCreds(); err != nil || creds.AccessKeyID == "" {
		err = errors.Join(err, errors.New("none found"))
		return fail("no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or run with a role", err)
	}
	if err := s.exists(ctx); err != nil {
		return fail("create the bucket, or correct bucket, endpoint, region and path-style in CODEHUB_ARCHIVE_URL", err)
	}
	key := s.prefix + probePrefix + rand.Text()
	content := []byte("written to see whether this bucket can be used\n")
	if _, err := s.core.Client.PutObject(ctx, s.bucket, key, bytes.NewReader(content), int64(len(content)), minio.PutObjectOptions{}); err != nil {
		return fail("allow these credentials to write (s3:PutObject)", err)
	}
	defer func() {
		_ = s.core.RemoveObject(context.WithoutCancel(ctx), s.bucket, key, minio.RemoveObjectOptions{})
	}()
	body, _, _, err := s.core.GetObject(ctx, s.bucket, key, minio.GetObjectOptions{})
	if err == nil {
		var back []byte
		back, err = io.ReadAll(body)
		body.Close()
		if err == nil && !bytes.Equal(back, content) {
			err = errors.New("the bucket returned other content than was written")
		}
	}
	if err != nil {
		return fail("allow these credentials to read (s3:GetObject)", err)
	}
	for o := range s.core.ListObjectsIter(ctx, s.bucket, minio.ListObjectsOptions{Prefix: key, Recursive: true}) {
		err = o.Err
	}
	if err != nil {
		return fail("allow these credentials to list (s3:ListBucket)", err)
	}
	id, err := s.core.NewMultipartUpload(ctx, s.bucket, key, minio.PutObjectOptions{})
	if err == nil {
		err = s.core.AbortMultipartUpload(ctx, s.bucket, key, id)
	}
	if err == nil {
		_, err = s.core.ListMultipartUploads(ctx, s.bucket, key, "", "", "", 1)
	}
	if err != nil {
		return fail("allow these credentials multipart uploads (s3:AbortMultipartUpload, s3:ListBucketMultipartUploads)", err)
	}
	if err := s.core.RemoveObject(ctx, s.bucket, key, minio.RemoveObjectOptions{}); err != nil {
		return fail("allow these credentials to delete (s3:DeleteObject)", err)
	}
	return nil
}
