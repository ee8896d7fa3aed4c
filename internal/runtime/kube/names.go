package kube

import (
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Labels of everything that codehub creates. What is not a valid value of a label is an
// annotation of the same name.
const (
	labelInstallation = "codehub.dev/installation"
	labelRole         = "codehub.dev/role"
	labelWorkspace    = "codehub.dev/workspace"
	labelClaim        = "codehub.dev/claim" // of the home, or of the operation that created the Pod

	// Of a home. Each says that something is known of it; a missing one that it is not.
	noteSeeded   = "codehub.dev/seeded"   // seeding has finished
	noteSettled  = "codehub.dev/settled"  // it is live: never wiped or restored into
	noteRestored = "codehub.dev/restored" // key of the archive that it has the content of
	noteRemoving = "codehub.dev/removing" // its removal has begun
	noteOwner    = "codehub.dev/owner"
	noteName     = "codehub.dev/workspace-name"

	// Of a workspace's Pod.
	noteImage       = "codehub.dev/image" // as given
	noteGeneration  = "codehub.dev/image-generation"
	noteImageNote   = "codehub.dev/image-note"
	noteEnvironment = "codehub.dev/environment"

	// Of a storage job.
	noteKind        = "codehub.dev/kind"
	noteVolumeClaim = "codehub.dev/volume-claim"
	noteKey         = "codehub.dev/key"

	// Of a mark.
	noteMark     = "codehub.dev/mark"
	noteSerial   = "codehub.dev/serial"
	noteIdentity = "codehub.dev/identity"
	noteAt       = "codehub.dev/at"
)

// Roles.
const (
	roleHome      = "home"      // persistent volume claim
	roleWorkspace = "workspace" // Pod
	roleSeed      = "seed"      // Pod that fills a new home from an image
	roleJob       = "job"       // Pod of a storage job
	roleMark      = "mark"      // ConfigMap
)

// gate keeps a Pod from being scheduled until its home was checked. A Pod that has it uses
// nothing.
const gate = "codehub.dev/home-is-checked"

// The containers of a workspace's Pod.
const (
	containerWorkspace = "workspace"
	containerTools     = "tools" // copies the agent
)

func seedName(id workspace.ID) string { return "codehub-seed-" + string(id) }

func jobName(kind runtime.JobKind, id workspace.ID) string {
	return "codehub-" + string(kind) + "-" + string(id)
}
