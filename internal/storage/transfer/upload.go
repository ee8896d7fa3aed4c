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

// Ticket allows the upload of one object of bounded, unknown length without the
// bucket's credentials: it has a started multipart upload and a signed URL for
// each step.
type Ticket struct {
	UploadID string   `json:"upload_id"`
	PartSize int64    `json:"part_size"`
	Parts    []string `json:"parts"`
	Complete string   `json:"complete"`
	Abort    string   `json:"abort"`
	Head     string   `json:"head"`
}

// Fit chooses the part size by the largest possible size of the object. Without
// it, parts have the size for the largest object of the ticket, which takes the
// most memory and allows the fewest parallel parts.
func (t *Ticket) Fit(size int64) {
	n := max(int64(len(t.Parts)), 1)
	part := max((max(size, 0)/n>>20+1)<<20, MinPart)
	t.PartSize = min(t.PartSize, part)
}

const (
	MinPart    = 16 << 20
	MaxParts   = 10_000
	partBuffer = 64 << 20 // memory for parts being sent
)

// PartSize returns the size of all parts but the last, which some buckets
// require to be equal.
func PartSize(maxSize int64) int64 {
	size := (maxSize + MaxParts - 1) / MaxParts
	return max((size+1<<20-1)>>20<<20, MinPart)
}

// Upload stores the content of r as the ticket's object and returns its length.
// The object becomes visible as a whole. An error of r aborts the upload and is
// returned unchanged.
func (c *Client) Upload(ctx context.Context, ticket *Ticket, r io.Reader) (int64, error) {
	if ticket.PartSize < 1 || ticket.PartSize > 5<<30 {
		return 0, fmt.Errorf("upload: bad part size %d", ticket.PartSize)
	}
	return c.UploadParts(ctx, "upload", ticket, func(_ context.Context, n int) (string, error) {
		if n > len(ticket.Parts) {
			return "", fmt.Errorf("%w: the maximum is %d bytes", ErrTooLarge, ticket.PartSize*int64(len(ticket.Parts)))
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

// upload is a running multipart upload.
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

// parts uploads up to four parts at a time.
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
			return errors.New("the bucket stored a part without an ETag")
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
			return nil // the response to the previous try was lost
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
	// The response starts before the work is done, so its body counts and not
	// its status.
	b, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err != nil {
		return err
	}
	var root struct{ XMLName xml.Name }
	if err := xml.Unmarshal(b, &root); err != nil {
		return fmt.Errorf("completion response: %w", err)
	}
	if root.XMLName.Local != "CompleteMultipartUploadResult" {
		answer := &answerError{status: res.StatusCode}
		_ = xml.Unmarshal(b, answer) // it was parsed above
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

// abort removes the uploaded parts, even if the context has ended. If it fails,
// AbortIncomplete removes them later.
func (u *upload) abort(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	_ = u.retry(ctx, func() error {
		res, err := u.do(ctx, http.MethodDelete, u.ticket.Abort, nil, nil)
		if err == nil {
			res.Body.Close()
		}
		return err
	})
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
