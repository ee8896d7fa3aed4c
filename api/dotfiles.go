package api

// Dotfiles is the body of PUT /user/dotfiles, and the answer to it and to GET /user/dotfiles.
type Dotfiles struct {
	URL    string `json:"url"`    // of a Git repository; empty: there are none
	Branch string `json:"branch"` // branch or tag; empty: the one that the repository begins with
}
