package client

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"codehub/api"
)

// Archives lists the archives of a workspace, newest first.
func (c *Client) Archives(ctx context.Context, id string) ([]api.Archive, error) {
	return all(ctx, c, path(id, "/archives"), func(page api.ArchiveList) ([]api.Archive, string) { return page.Archives, page.NextCursor })
}

// Download is an open download of an archive.
type Download struct {
	Body   io.ReadCloser
	Offset int64  // of Body's first byte in the archive
	Size   int64  // of the whole archive in bytes
	ETag   string // of the archive; empty if the server sent none
	SHA256 string // of the whole archive, in hex; empty if the server sent none
}

// Download opens an archive of a workspace: the one that archiveOpID made, or
// if that is empty the current one. With an offset and the ETag of an earlier
// Download it begins at the offset if the archive is still the same, otherwise at
// 0 (see Download.Offset). The caller closes Body.
func (c *Client) Download(ctx context.Context, id, archiveOpID string, offset int64, etag string) (*Download, error) {
	return c.downloadOf(ctx, id, archiveOpID, partFrom(offset, etag))
}

// ArchiveFiles lists a folder of an archive ("." is the home), or one file: of the archive that
// archiveOpID made, or if that is empty of the current one. It reads all pages.
func (c *Client) ArchiveFiles(ctx context.Context, id, archiveOpID, name string) ([]api.ArchiveFile, error) {
	return c.files(ctx, path(id, "/archive/files"), ofArchive(archiveOpID, name))
}

// files reads all pages of a folder.
func (c *Client) files(ctx context.Context, path string, query url.Values) ([]api.ArchiveFile, error) {
	list := []api.ArchiveFile{}
	for {
		page, err := ask[api.ArchiveFiles](ctx, c, http.MethodGet, path, query, nil)
		list = append(list, page.Files...)
		if err != nil || page.NextCursor == "" {
			return list, err
		}
		query.Set("cursor", page.NextCursor)
	}
}

// DownloadFile opens one file of an archive. Its Download has neither an ETag nor a SHA256. The
// caller closes Body.
func (c *Client) DownloadFile(ctx context.Context, id, archiveOpID, name string) (*Download, error) {
	return c.download(ctx, path(id, "/archive/file"), ofArchive(archiveOpID, name), http.Header{})
}

func ofArchive(archiveOpID, name string) url.Values {
	q := url.Values{"path": {name}}
	if archiveOpID != "" {
		q.Set("archive_op_id", archiveOpID)
	}
	return q
}

// partFrom are the headers of a request for the rest of an archive.
func partFrom(offset int64, etag string) http.Header {
	h := http.Header{}
	if offset > 0 && etag != "" {
		h.Set("Range", fmt.Sprintf("bytes=%d-", offset))
		h.Set("If-Range", etag)
	}
	return h
}

// DownloadInfo returns a Download without its Body.
func (c *Client) DownloadInfo(ctx context.Context, id, archiveOpID string) (*Download, error) {
	// A GET of the first byte, because errors of HEAD have no message.
	d, err := c.downloadOf(ctx, id, archiveOpID, http.Header{"Range": {"bytes=0-0"}})
	if err != nil {
		return nil, err
	}
	d.Body.Close()
	d.Body = nil
	return d, nil
}

func (c *Client) downloadOf(ctx context.Context, id, archiveOpID string, h http.Header) (*Download, error) {
	q := url.Values{}
	if archiveOpID != "" {
		q.Set("archive_op_id", archiveOpID)
	}
	return c.download(ctx, path(id, "/archive"), q, h)
}

func (c *Client) download(ctx context.Context, path string, q url.Values, h http.Header) (*Download, error) {
	// No proxy may compress it: Content-Range counts the stored bytes.
	h.Set("Accept-Encoding", "identity")
	resp, err := c.send(ctx, http.MethodGet, path, q, h, nil)
	if err != nil {
		return nil, err
	}
	d := &Download{Body: resp.Body, Size: resp.ContentLength, ETag: resp.Header.Get("ETag"), SHA256: reprDigest(resp.Header.Get("Repr-Digest"))}
	if resp.StatusCode == http.StatusPartialContent {
		d.Offset, d.Size, err = contentRange(resp.Header.Get("Content-Range"))
	}
	if err == nil && d.Size < 0 {
		err = fmt.Errorf("the server does not say how large the archive is")
	}
	if err != nil {
		resp.Body.Close()
		return nil, err
	}
	return d, nil
}

// contentRange reads "bytes 5-9/100": the offset of the part and the size of the
// whole.
func contentRange(s string) (start, size int64, err error) {
	part, whole, ok1 := strings.Cut(strings.TrimPrefix(s, "bytes "), "/")
	first, _, ok2 := strings.Cut(part, "-")
	start, err1 := strconv.ParseInt(first, 10, 64)
	size, err2 := strconv.ParseInt(whole, 10, 64)
	if !ok1 || !ok2 || err1 != nil || err2 != nil || start < 0 || size < start {
		return 0, 0, fmt.Errorf("the server sent a part of the archive and did not say which: Content-Range %q", s)
	}
	return start, size, nil
}

// reprDigest is the SHA-256, in hex, of a Repr-Digest (RFC 9530), or "".
func reprDigest(s string) string {
	for field := range strings.SplitSeq(s, ",") {
		value, ok := strings.CutPrefix(strings.TrimSpace(field), "sha-256=:")
		if !ok {
			continue
		}
		b, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(value, ":"))
		if err == nil && len(b) == 32 {
			return hex.EncodeToString(b)
		}
	}
	return ""
}
