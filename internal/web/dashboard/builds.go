package dashboard

import (
	"net/http"
	"time"

	"codehub/internal/runtime/imagebuild"
	"codehub/internal/web/dashboard/catalogue"
	"codehub/internal/workspace"
)

// buildsView is the part of the list of workspaces with the images that the server makes.
type buildsView struct {
	Images  []buildView
	Failed  bool
	Missing string // what to do about a missing image that the server does not make
	OOB     bool
}

// buildView is one of these images.
type buildView struct {
	imagebuild.Image
	Took  time.Duration
	Admin bool // shows the log, and may try again
	OOB   bool
}

func (d *Dashboard) builds(c workspace.Caller) buildsView {
	v := buildsOf(d.Builds.Images(), c.Admin && d.Admin != nil, d.Now())
	if len(v.Images) == 0 {
		v.Missing = d.missingImage()
	}
	return v
}

// missingImage returns the sentences about a missing image of the server's; "" if there is none.
func (d *Dashboard) missingImage() string {
	if d.MissingImage == nil {
		return ""
	}
	return catalogue.English.Sentences(d.MissingImage())
}

// buildsOf is empty unless there was something to make, and once all images are ready.
func buildsOf(images []imagebuild.Image, admin bool, now time.Time) buildsView {
	var v buildsView
	began, pending := false, false
	for _, i := range images {
		v.Images = append(v.Images, buildView{Image: i, Took: i.Took(now), Admin: admin})
		v.Failed = v.Failed || i.State == imagebuild.Failed
		began = began || i.Steps > 0 || i.State == imagebuild.Failed
		pending = pending || i.State != imagebuild.Ready
	}
	if !began || !pending {
		return buildsView{}
	}
	return v
}

// shape changes when more than the rows of images changes.
func (v buildsView) shape() string {
	switch {
	case len(v.Images) == 0:
		return v.Missing
	case v.Failed:
		return "failed"
	}
	return "shown"
}

// retryImage makes an image again whose build failed.
func (d *Dashboard) retryImage(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	if _, err := d.Admin.RetryImage(r.Context(), c, r.PathValue("image")); err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	if !isHTMX(r) {
		d.redirect(w, r, "/")
		return
	}
	v := d.builds(c)
	v.OOB = true
	d.fragments(w, r, http.StatusOK, part{"builds", v})
}
