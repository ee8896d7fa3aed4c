package transfer

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

// Ticket lets its bearer upload one object of unknown length, up to a bound, to
// a bucket of which they have no credentials: a multipart upload that was begun
// for them, and a signed URL for each step of it.
type Ticket struct {
	UploadID string   `json:"upload_id"`
	PartSize int64    `json:"part_size"`
	Parts    []string `json:"parts"`
	Complete string   `json:"complete"`
	Abort    string   `json:"abort"`
	Head     string   `json:"head"`
}

// Fit chooses how large the parts are by how large the object will be, at most
// as far as is known. Without it they are of the size for the largest that the
// ticket is for, which takes the most memory and has the least under way at a
// time.
func (t *Ticket) Fit(size int64) {
	n := max(int64(len(t.Parts)), 1)
	part := max((max(size, 0)/n>>20+1)<<20, MinPart)
	t.PartSize = min(t.PartSize, part)
}

const (
	MinPart    = 16 << 20
	MaxParts   = 10_000
	partBuffer = 64 << 20 // for parts under way
)

// partSize is the same for all parts but the last, as some buckets want it.
func PartSize(maxSize int64) int64 {
	size := (maxSize + MaxParts - 1) / MaxParts
	return max((size+1<<20-1)>>20<<20, MinPart)
}

// Upload stores what r yields as the object of the ticket, and returns its
// length. The object appears as a whole when it is done. An error of r is
// returned as it is; then the upload is aborted.
func (c *Client) Upload(ctx context.Context, ticket *Ticket, r io.Reader) (int64, error) {
	if ticket.PartSize < 1 || ticket.PartSize > 5<<30 {
		return 0, fmt.Errorf("upload: bad part size %d", ticket.PartSize)
	}
	return c.UploadParts(ctx, "upload", ticket, func(_ context.Context, n int) (string, error) {
		if n > len(ticket.Parts) {
			return "", fmt.Errorf("%w: its ticket is for %d bytes", ErrTooLarge, ticket.PartSize*int64(len(ticket.Parts)))
		}
		return ticket.Parts[n-1], nil
	}, r)
}

// UploadParts is Upload with a function that returns the URL of each part,
// instead of the ticket's own. Errors begin with doing.
func (c *Client) UploadParts(ctx context.Context, doing string, ticket *Ticket, part func(ctx context.Context, number int) (string, error), r io.Reader) (int64, error) {
	u := &upload{Client: c, ticket: ticket, part: part}
	return u.run(ctx, doing, r)
}

// upload is a multipart upload under way.
type upload struct {
	*Client
	ticket *Ticket
	part   func(ctx context.Context, number int) (string, error) // the URL of a part
	etags  []*string
}

func (u *upload) run(ctx context.Context, doing string, r io.Reader) (int64, error) {
	src := &tracked{r: r}
	size, err := u.parts(ctx, src)
	if err == nil {
		err = u.complete(ctx, size)
	}
	if err == nil {
		return size, nil
	}
	u.abort(ctx)
	if src.err != nil {
		return 0, fmt.Errorf("%s: %w", doing, src.err)
	}
	if errors.Is(err, ErrTooLarge) {
		return 0, fmt.Errorf("%s: %w", doing, err)
	}
	return 0, unavailable(ctx, doing, err)
}

// parts uploads a few parts at a time.
func (u *upload) parts(ctx context.Context, r io.Reader) (int64, error) {
	group, ctx := errgroup.WithContext(ctx)
	n := min(max(int(partBuffer/u.ticket.PartSize), 1), 4)
	free := make(chan []byte, n)
	for range n {
		free <- nil
	}
	size := int64(0)
	var failed error
	for number := 1; ; number++ {
		var buf []byte
		select {
		case buf = <-free:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		if buf == nil {
			buf = make([]byte, u.ticket.PartSize)
		}
		got, err := io.ReadFull(r, buf)
		last := err == io.EOF || err == io.ErrUnexpectedEOF
		if err != nil && !last {
			failed = err
			break
		}
		if got == 0 && number > 1 {
			break
		}
		size += int64(got)
		url, err := u.part(ctx, number)
		if err != nil {
			failed = err
			break
		}
		etag := new(string)
		u.etags = append(u.etags, etag)
		group.Go(func() error {
			tag, err := u.send(ctx, url, buf[:got])
			if err != nil {
				return fmt.Errorf("part %d: %w", number, err)
			}
			*etag = tag
			free <- buf
			return nil
		})
		if last {
			break
		}
	}
	if err := group.Wait(); err != nil && failed == nil {
		failed = err
	}
	return size, failed
}

func (u *upload) send(ctx context.Context, url string, b []byte) (etag string, err error) {
	err = u.retry(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, partTimeout)
		defer cancel()
		res, err := u.do(ctx, http.MethodPut, url, b, nil)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if etag = res.Header.Get("ETag"); etag == "" {
			return errors.New("bucket took a part and gave no ETag for it")
		}
		return nil
	})
	return etag, err
}

type completion struct {
	XMLName xml.Name        `xml:"CompleteMultipartUpload"`
	Parts   []completedPart `xml:"Part"`
}

type completedPart struct {
	PartNumber int
	ETag       string
}

func (u *upload) complete(ctx context.Context, size int64) error {
	var c completion
	for i, etag := range u.etags {
		c.Parts = append(c.Parts, completedPart{i + 1, *etag})
	}
	body, err := xml.Marshal(c)
	if err != nil {
		return err
	}
	again := false
	return u.retry(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, partTimeout)
		defer cancel()
		err := u.completeOnce(ctx, body)
		var answer *answerError
		if again && errors.As(err, &answer) && answer.Code == "NoSuchUpload" && u.stored(ctx, size) {
			return nil // it was the answer to the try before that got lost
		}
		again = true
		return err
	})
}

func (u *upload) completeOnce(ctx context.Context, body []byte) error {
	res, err := u.do(ctx, http.MethodPost, u.ticket.Complete, body, map[string]string{"Content-Type": "application/xml"})
	if err != nil {
		return err
	}
	defer res.Body.Close()
	// The answer begins before the work is done: what it says counts, not its
	// status.
	b, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err != nil {
		return err
	}
	var root struct{ XMLName xml.Name }
	if err := xml.Unmarshal(b, &root); err != nil {
		return fmt.Errorf("answer to the completion: %w", err)
	}
	if root.XMLName.Local != "CompleteMultipartUploadResult" {
		answer := &answerError{status: res.StatusCode}
		_ = xml.Unmarshal(b, answer) // it parsed just now
		return answer
	}
	return nil
}

func (u *upload) stored(ctx context.Context, size int64) bool {
	res, err := u.do(ctx, http.MethodHead, u.ticket.Head, nil, nil)
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.ContentLength == size
}

// abort frees what was uploaded, even if the context has ended. If it cannot,
// AbortIncomplete does later.
func (u *upload) abort(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if res, err := u.do(ctx, http.MethodDelete, u.ticket.Abort, nil, nil); err == nil {
		res.Body.Close()
	}
}

// tracked records an error of the reader itself, which is not the bucket's.
type tracked struct {
	r   io.Reader
	err error
}

func (t *tracked) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if err != nil && err != io.EOF {
		t.err = err
	}
	return n, err
}
