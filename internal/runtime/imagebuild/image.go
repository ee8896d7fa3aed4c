package imagebuild

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Names of images. Where Full is the default image, Slim takes its place until Full is ready.
const (
	IDE  = "ide"
	Slim = "slim"
	Full = "full"
)

// State is how far an image is.
type State string

const (
	Waiting State = "waiting" // for those before it
	Making  State = "making"
	Ready   State = "ready"
	Failed  State = "failed" // until it is tried again
)

// Image is an image that the server makes.
type Image struct {
	Name, Ref   string
	State       State
	Step, Steps int    // of the last attempt; 0: not known
	Text        string // of that step, in English
	// Began and Ended are the times of the last attempt; zero: it has not begun, or not ended.
	Began, Ended time.Time
	Err          string   // why it failed
	Log          []string // the last lines of the attempt that failed
}

// maxLog and maxLine limit what is kept of a log.
const (
	maxLog  = 20
	maxLine = 500
)

// parseList reads what the program prints for "list": NAME<TAB>IMAGE in each line.
func parseList(out string) ([]Image, error) {
	var list []Image
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		name, ref, ok := strings.Cut(line, "\t")
		if !ok || name == "" || ref == "" || strings.ContainsAny(name+ref, " \t") {
			return nil, fmt.Errorf("%.100q is no name and image with a tab between them", line)
		}
		if slices.ContainsFunc(list, func(i Image) bool { return i.Name == name }) {
			return nil, fmt.Errorf("the image %s is listed twice", name)
		}
		list = append(list, Image{Name: name, Ref: ref, State: Waiting})
	}
	if len(list) == 0 {
		return nil, errors.New("it lists no image")
	}
	return list, nil
}

// begin begins an attempt.
func (i *Image) begin(now time.Time) {
	*i = Image{Name: i.Name, Ref: i.Ref, State: Making, Began: now}
}

var stepLine = regexp.MustCompile(`^step (\d{1,4})/(\d{1,4}) (.+)$`)

// step reads a line of the program's output, and reports whether it is a step.
func (i *Image) step(line string) bool {
	m := stepLine.FindStringSubmatch(line)
	if m == nil {
		return false
	}
	i.Step, _ = strconv.Atoi(m[1])
	i.Steps, _ = strconv.Atoi(m[2])
	i.Text = m[3]
	return true
}

// log keeps a line of the program's output.
func (i *Image) log(line string) {
	i.Log = append(i.Log, line)
	i.Log = i.Log[max(0, len(i.Log)-maxLog):]
}

// end ends the attempt.
func (i *Image) end(err error, now time.Time) {
	i.Ended, i.State = now, Ready
	if err != nil {
		i.State, i.Err = Failed, err.Error()
		return
	}
	i.Log = nil
}

// retry reports whether the image failed; it then waits to be made again.
func (i *Image) retry() bool {
	if i.State != Failed {
		return false
	}
	*i = Image{Name: i.Name, Ref: i.Ref, State: Waiting}
	return true
}

// Took returns how long the last attempt took, or has taken.
func (i Image) Took(now time.Time) time.Duration {
	switch {
	case i.Began.IsZero():
		return 0
	case i.Ended.IsZero():
		return now.Sub(i.Began)
	}
	return i.Ended.Sub(i.Began)
}
