package agent

import (
	"context"
	"net/http"
	"regexp"
	"slices"
)

// PathDescriptions is where the agent hands out the files by which the cloned repositories describe
// their environment.
const PathDescriptions = "/v1/setup/descriptions"

// Limits of what PathDescriptions hands out.
const (
	MaxDescriptions     = 16      // files
	MaxDescription      = 1 << 20 // bytes of a file
	MaxDescriptionBytes = 2 << 20 // bytes of all

	maxDescriptionsAnswer = 4 << 20 // bytes as JSON
)

// Description is a file by which a repository describes its environment.
type Description struct {
	Folder string `json:"folder"` // that of the repository, below the home
	Name   string `json:"name"`   // below that: ".devcontainer/devcontainer.json"
	// Content is empty if there is a Problem.
	Content []byte `json:"content,omitempty"`
	Problem string `json:"problem,omitempty"`
}

// Problems of a Description. Pages translate them.
const (
	ProblemLong       = "long"       // more than MaxDescription, or all together more than MaxDescriptionBytes
	ProblemKind       = "kind"       // not a regular file
	ProblemUnreadable = "unreadable" // or a link out of the repository
)

// Descriptions are the files in the order in which tools take them. More reports that there are
// others.
type Descriptions struct {
	Files []Description `json:"files,omitempty"`
	More  bool          `json:"more,omitempty"`
}

// IsDescription reports whether tools read a file of this name in a repository.
func IsDescription(name string) bool { return descriptionName.MatchString(name) }

var descriptionName = regexp.MustCompile(`^(\.devcontainer/([^/\pC]{1,255}/)?devcontainer\.json|\.devcontainer\.json|\.gitpod\.yml)$`)

// Descriptions reads the files by which the cloned repositories describe their environment, as they
// are now.
func (c *Client) Descriptions(ctx context.Context) (Descriptions, error) {
	var d Descriptions
	err := c.ask(ctx, http.MethodGet, PathDescriptions, nil, maxDescriptionsAnswer, &d)
	return d.checked(), err
}

// checked returns d without what no honest agent reports.
func (d Descriptions) checked() Descriptions {
	size := 0
	d.Files = slices.DeleteFunc(d.Files, func(f Description) bool {
		size += len(f.Content)
		return !IsDescription(f.Name) || len(f.Folder) > maxStepText || f.Folder != printable(f.Folder, maxStepText) ||
			len(f.Content) > MaxDescription || size > MaxDescriptionBytes
	})
	if len(d.Files) > MaxDescriptions {
		d.Files, d.More = d.Files[:MaxDescriptions], true
	}
	for i := range d.Files {
		switch f := &d.Files[i]; f.Problem {
		case "", ProblemLong, ProblemKind:
		default:
			f.Problem = ProblemUnreadable
		}
	}
	return d
}
