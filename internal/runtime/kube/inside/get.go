package inside

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// getFor is how long get tries, with one request per getEvery.
const (
	getFor   = time.Minute
	getEvery = time.Second
)

// get requests an address until it responds with status 200, and prints the response.
func get(ctx context.Context, url string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, getFor)
	defer cancel()
	for {
		err := getOnce(ctx, url, out)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(getEvery):
		}
	}
}

func getOnce(ctx context.Context, url string, out io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	client := http.Client{Timeout: 10 * time.Second}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<16))
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s responded with status %d: %s", url, res.StatusCode, body)
	}
	_, err = out.Write(body)
	return err
}
