package kube

import (
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Labels of everything that codehub creates. Anything that is no valid value of a label is an
// annotation.
const (
	labelInstallation = "codehub.dev/installation"
	labelRole         = "codehub.dev/role"
	labelWorkspace    = "codehub.dev/workspace"
	labelClaim        = "codehub.dev/claim" // of the home, or of the operation that created the Pod

	labelProbe = "codehub.dev/probe" // of a Pod of a network check: the installation

	// Of a home. Each records a fact about it.
	noteSeeded   = "codehub.dev/seeded"   // seeding has finished
	noteSettled  = "codehub.dev/settled"  // it is live: never wiped or restored into
	noteRestored = "codehub.dev/restored" // key of the archive whose content it has
	noteRemoving = "codehub.dev/removing" // its removal has begun
	noteFiller   = "codehub.dev/filler"   // UID of the Pod that was last admitted to fill it
	noteOwner    = "codehub.dev/owner"
	noteName     = "codehub.dev/workspace-name"

	noteAside = "codehub.dev/aside" // the call that is setting it aside; also of a claim that is not codehub's

	// Of a set-aside home.
	noteOrigin  = "codehub.dev/origin" // UID of the claim that was set aside
	noteSince   = "codehub.dev/since"  // when; only a complete copy has it
	noteBytes   = "codehub.dev/bytes"
	noteEntries = "codehub.dev/entries"

	// Of a Pod that mounts a home.
	noteVolumeClaim = "codehub.dev/volume-claim"
	noteVolumeUID   = "codehub.dev/volume-uid" // of the persistent volume claim

	// Of a workspace's Pod.
	noteImage       = "codehub.dev/image" // as given; also of a task and of a record
	noteImageDigest = "codehub.dev/image-digest"
	noteGeneration  = "codehub.dev/image-generation"
	noteImageNote   = "codehub.dev/image-note"
	noteEnvironment = "codehub.dev/environment"
	noteSize        = "codehub.dev/size"   // name
	notePasswd      = "codehub.dev/passwd" // the file in its container
	noteGroup       = "codehub.dev/group"
	noteAuthorities = "codehub.dev/authorities" // those of Config.Authorities

	// Of a storage job.
	noteKind = "codehub.dev/kind"
	noteKey  = "codehub.dev/key"
	noteNode = "codehub.dev/node" // of a backup: that of the workspace's Pod

	// Of what is known of an image.
	labelImageKey = "codehub.dev/image-key" // hash of its digest or ID
	labelImageRef = "codehub.dev/image-ref" // hash of the reference

	// Of a mark.
	noteMark     = "codehub.dev/mark"
	noteSerial   = "codehub.dev/serial"
	noteIdentity = "codehub.dev/identity"
	noteAt       = "codehub.dev/at"
)

// Roles.
const (
	roleHome      = "home"      // persistent volume claim
	roleAside     = "aside"     // persistent volume claim of a set-aside home, and the Pod that copies it
	roleWorkspace = "workspace" // Pod
	roleTask      = "task"      // Pod that works on a home for one call
	roleJob       = "job"       // Pod of a storage job
	roleMark      = "mark"      // ConfigMap
	roleImage     = "image"     // ConfigMap
)

// gate keeps a Pod from being scheduled until its home was checked. A Pod that has it uses
// nothing.
const gate = "codehub.dev/home-is-checked"

// Containers of Pods.
const (
	containerWorkspace = "workspace"
	containerHelper    = "helper"     // of a task or a job
	containerAgent     = "copy-agent" // init container that copies the agent
	containerTrust     = "trust"      // init container that makes the files of authorities
	containerIDE       = "copy-ide"   // init container that copies the IDE
)

// Folders of a home's volume. The volume's own top folder belongs to its file system, which
// may keep files there.
const (
	homePath    = "home"
	scratchPath = "scratch" // for trials of an archive job
)

// The name of a Pod is a lock: a second Pod with it cannot be created.

func seedName(id workspace.ID) string     { return "codehub-seed-" + string(id) }
func describeName(id workspace.ID) string { return "codehub-describe-" + string(id) }
func checkName(id workspace.ID) string    { return "codehub-check-" + string(id) }
func ownName(id workspace.ID) string      { return "codehub-own-" + string(id) }
func copyName(id workspace.ID) string     { return "codehub-aside-" + string(id) }

func probeName(letter, installation string) string {
	return "codehub-probe-" + letter + "-" + installation
}

func jobName(kind runtime.JobKind, id workspace.ID) string {
	return "codehub-" + string(kind) + "-" + string(id)
}
