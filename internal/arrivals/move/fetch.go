package move

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"codehub/api"
)

const (
	maxFailures = 5 // in a row, of a download
	// stalled is how long a download may deliver nothing.
	stalled = time.Minute
)

// fetch reads the archive of a record from the source. It continues an interrupted download
// where it ended.
type fetch struct {
	ctx context.Context
	*source
	record api.MoveRecord

	at       int64 // bytes read
	etag     string
	body     io.ReadCloser
	stop     context.CancelFunc // of the body
	failures int                // since the last byte
	logged   time.Time
	err      error // why reading ended before the end of the archive
}

func (s *source) fetch(ctx context.Context, record api.MoveRecord) *fetch {
	return &fetch{ctx: ctx, source: s, record: record, logged: time.Now()}
}

// Read implements io.Reader.
func (f *fetch) Read(p []byte) (int, error) {
	for f.err == nil {
		n, err := f.read(p)
		if n > 0 {
			f.err = f.progress(n)
			return n, nil
		}
		if err == io.EOF && f.at >= f.record.Archive.Size {
			return 0, io.EOF
		}
		if err != nil {
			f.Close()
			f.err = f.retry(err)
		}
	}
	return 0, f.err
}

// read reads once, and opens the download if it is not open.
func (f *fetch) read(p []byte) (int, error) {
	var ctx context.Context
	if f.body == nil {
		ctx, f.stop = context.WithCancel(f.ctx)
	}
	timer := time.AfterFunc(stalled, f.stop)
	defer timer.Stop()
	if f.body == nil {
		d, err := f.Client.FetchToMove(ctx, f.record.ID, f.record.Version, f.at, f.etag)
		if err != nil {
			return 0, err
		}
		f.body, f.etag = d.Body, d.ETag
		if d.Offset != f.at || d.Size != f.record.Archive.Size {
			return 0, sourceAnswer{fmt.Errorf("the source sent an archive of %d bytes from byte %d, and recorded %d bytes", d.Size, d.Offset, f.record.Archive.Size)}
		}
	}
	return f.body.Read(p)
}

// sourceAnswer is a wrong answer, which a repetition does not change.
type sourceAnswer struct{ error }

func (f *fetch) progress(n int) (err error) {
	if f.at == 0 {
		err = f.run.Pass("fetching")
	}
	f.at += int64(n)
	f.failures = 0
	if time.Since(f.logged) > logEvery {
		f.logged = time.Now()
		f.run.Log.InfoContext(f.ctx, "copying an archive", "workspace", f.record.ID, "bytes", f.at, "total", f.record.Archive.Size)
	}
	return err
}

// retry waits before the next try to continue the download, or returns why there is none.
func (f *fetch) retry(err error) error {
	if wrong := (sourceAnswer{}); errors.As(err, &wrong) {
		return wrong.error
	}
	if errors.Is(err, context.Canceled) && f.ctx.Err() == nil { // by the timer of read
		err = fmt.Errorf("it has sent nothing for %s", stalled)
	}
	if f.failures++; refused(err) || f.failures > maxFailures || f.at > 0 && f.etag == "" {
		return fromSource(err)
	}
	f.run.Log.WarnContext(f.ctx, "download interrupted", "workspace", f.record.ID, "bytes", f.at, "err", err)
	return f.backOff(f.ctx, f.failures)
}

// Close ends the download.
func (f *fetch) Close() {
	if f.body != nil {
		f.body.Close()
		f.body = nil
	}
	if f.stop != nil {
		f.stop()
	}
}
