package kube

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/runtime/kube/inside"
	"codehub/internal/workspace"
)

// What a workspace's Pod needs to know of its image: its variables and its program, which the
// registry has, and its users, which only a Pod of the image sees. Both are read once for each
// image and kept in a ConfigMap, so that other starts cost nothing.

// facts are what is known of an image.
type facts struct {
	account.Accounts

	Env      []string `json:"env,omitempty"`
	Command  []string `json:"command,omitempty"`  // ENTRYPOINT and CMD
	Included bool     `json:"included,omitempty"` // the image brings the IDE
	// Processors are those that the image is for, by Go's names; empty: not known.
	Processors []string `json:"processors,omitempty"`
	// Read says that the registry has told Env, Command, Included and Processors. Otherwise
	// Env is that of a Pod, and the image counts as one without an IDE.
	Read bool `json:"read,omitempty"`
}

// known are the facts of images by the key of each, in this process.
type known struct {
	mu    sync.Mutex
	facts map[string]facts
	asked map[string]time.Time // when the registry was last asked about an image that it did not describe
	seen  map[string]seenImage // by the name of a Pod's container that names no digest
}

// seenImage is what a name has stood for on a node.
type seenImage struct {
	reported string // by the node
	at       time.Time
}

// seenFor is how long a name is believed to stand for the same image, so that not every start
// has to ask a node. It is only for images that the registry was not asked about.
const seenFor = time.Minute

func (k *known) get(key string) (facts, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f, ok := k.facts[key]
	return f, ok
}

func (k *known) put(key string, f facts) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.facts == nil {
		k.facts = map[string]facts{}
	}
	for old := range k.facts {
		if len(k.facts) < maxRecords {
			break
		}
		delete(k.facts, old) // it is read again when it is needed
	}
	k.facts[key] = f
}

// askAgain is after what time a registry is asked again about an image.
const askAgain = 10 * time.Minute

// mayAsk reports whether the registry may be asked again about an image, and notes that it is.
func (k *known) mayAsk(key string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if at, ok := k.asked[key]; ok && time.Since(at) < askAgain {
		return false
	}
	if k.asked == nil {
		k.asked = map[string]time.Time{}
	}
	k.asked[key] = time.Now()
	return true
}

func (k *known) saw(name, reported string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.seen == nil {
		k.seen = map[string]seenImage{}
	}
	k.seen[name] = seenImage{reported: reported, at: time.Now()}
}

func (k *known) lately(name string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s, ok := k.seen[name]; ok && time.Since(s.at) < seenFor {
		return s.reported
	}
	return ""
}

// keyOf returns by what the facts of an image are kept: its digest or its ID, which never
// stand for another one. It is "" for a name that may.
func keyOf(c chosenImage) string {
	if c.digest != "" {
		return c.digest
	}
	if strings.HasPrefix(c.name, "sha256:") {
		return c.name
	}
	return ""
}

// factsOf returns what is known of an image, and the image by its digest if a node has told
// it. If nothing is known yet, a Pod of the image describes it; that mounts the home, so that it runs
// where the workspace will.
func (r *Runtime) factsOf(ctx context.Context, c chosenImage, home *corev1.PersistentVolumeClaim, progress func(runtime.Progress)) (facts, chosenImage, error) {
	if keyOf(c) == "" {
		// One Pod describes the image for all that start at once. Its node may pull the image
		// before, for as long as a pull may take.
		waited := false
		unlock, err := r.describing.lockTelling(ctx, c.name, func() { waited = true; report(progress, runtime.StepWaitingPull) })
		if err != nil {
			return facts{}, c, err
		}
		defer unlock()
		if waited {
			report(progress, runtime.StepCreating)
		}
	}
	key := keyOf(c)
	if key == "" {
		if reported := r.known.lately(c.name); reported != "" {
			c = c.onNode(reported)
			key, _ = imageDigest(reported)
		}
	}
	if key != "" {
		f, ok, err := r.recorded(ctx, key)
		if ok && err == nil && !f.Read && r.known.mayAsk(key) && r.readImage(ctx, c, &f) {
			r.record(ctx, key, c.ref, f)
		}
		if ok || err != nil {
			return f, c, err
		}
	}
	id := workspace.ID(home.Labels[labelWorkspace])
	unlock, err := r.locks.lock(ctx, id)
	if err != nil {
		return facts{}, c, err
	}
	defer unlock()
	line, p, err := r.runTask(ctx, onHome{
		name: describeName(id), id: id, home: home, readOnly: true,
		image: &c, command: []string{inside.Command, inside.Describe}, shared: true,
	}, runtime.StepCreating, nil, progress)
	if err != nil {
		return facts{}, c, err
	}
	return r.learn(ctx, c, p, line)
}

// learn records what a Pod of an image has printed of it.
func (r *Runtime) learn(ctx context.Context, c chosenImage, p *corev1.Pod, line string) (facts, chosenImage, error) {
	var f facts
	if err := json.Unmarshal([]byte(line), &f); err != nil {
		return facts{}, c, fmt.Errorf("the Pod %s printed no description of its image: %w", p.Name, err)
	}
	if s := statusOf(p, containerHelper); s != nil && s.ImageID != "" {
		if keyOf(c) == "" {
			r.known.saw(c.name, s.ImageID)
		}
		c = c.onNode(s.ImageID)
	}
	key := keyOf(c)
	r.readImage(ctx, c, &f)
	if s := statusOf(p, containerHelper); key == "" && s != nil {
		key, _ = imageDigest(s.ImageID)
	}
	if key == "" {
		return f, c, nil
	}
	r.record(ctx, key, c.ref, f)
	return f, c, nil
}

// readImage adds what the registry knows of an image, and reports whether it could.
func (r *Runtime) readImage(ctx context.Context, c chosenImage, f *facts) bool {
	if c.digest == "" {
		return false
	}
	img, err := r.images.read(ctx, c.name)
	if err != nil {
		r.log.Warn("the registry does not describe an image, so that it counts as one without an IDE", "image", c.ref, "err", err)
		return false
	}
	f.Env, f.Command, f.Processors, f.Read = img.Env, slices.Concat(img.Entrypoint, img.Cmd), img.Platforms, true
	f.Included = img.Labels[account.LabelIDE] == account.IDEIncluded
	return true
}

// recorded returns the facts that this or another server has learned.
func (r *Runtime) recorded(ctx context.Context, key string) (facts, bool, error) {
	if f, ok := r.known.get(key); ok {
		return f, true, nil
	}
	list, err := r.imageRecords(ctx, labelImageKey, hash(key))
	if err != nil {
		return facts{}, false, err
	}
	for _, m := range list {
		var f facts
		if m.Annotations[noteImageDigest] == key && json.Unmarshal([]byte(m.Data[recordFacts]), &f) == nil {
			r.known.put(key, f)
			return f, true, nil
		}
	}
	return facts{}, false, nil
}

// lastKnown returns the digest of the image that was last recorded for a reference, or "".
func (r *Runtime) lastKnown(ctx context.Context, ref string) (string, error) {
	list, err := r.imageRecords(ctx, labelImageRef, hash(ref))
	if err != nil {
		return "", err
	}
	digest, at := "", time.Time{}
	for _, m := range list {
		if m.Annotations[noteImage] == ref && strings.HasPrefix(m.Annotations[noteImageDigest], "sha256:") && m.CreationTimestamp.After(at) {
			digest, at = m.Annotations[noteImageDigest], m.CreationTimestamp.Time
		}
	}
	return digest, nil
}

// recordFacts is the entry of a record with the facts, as JSON.
const recordFacts = "facts"

// maxRecords limits the records of an installation. The oldest give way; the facts of their
// images are then read again.
const maxRecords = 500

// maxRecord is the longest record in bytes, since the cluster keeps none of more than 1 MiB.
const maxRecord = 512 << 10

// imageRecords returns the records of images whose label has a value; "": all.
func (r *Runtime) imageRecords(ctx context.Context, label, value string) ([]*corev1.ConfigMap, error) {
	list, err := r.recordView.list(ctx)
	if err != nil {
		return nil, wrapError(ctx, "list records of images", err)
	}
	return slices.DeleteFunc(list, func(m *corev1.ConfigMap) bool {
		return !r.owns(m.Labels, roleImage) || label != "" && m.Labels[label] != value
	}), nil
}

// record keeps the facts of an image. If the cluster does not take them, only this process does,
// and others read them again.
func (r *Runtime) record(ctx context.Context, key, ref string, f facts) {
	r.known.put(key, f)
	if err := r.store(ctx, key, ref, f); err != nil {
		r.log.Warn("what is known of an image was not recorded", "image", ref, "err", err)
	}
}

func (r *Runtime) store(ctx context.Context, key, ref string, f facts) error {
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if len(text) > maxRecord {
		return fmt.Errorf("the description of the image has %d bytes", len(text))
	}
	names := r.labels(roleImage, "", "")
	names[labelImageKey], names[labelImageRef] = hash(key), hash(ref)
	name := "codehub-image-" + hash(r.cfg.Installation+"\n"+key+"\n"+ref)
	if f.Read { // one without what the registry knows gives way
		if err := r.configMaps().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !isNotFound(err) {
			return wrapError(ctx, "replace the record of an image", err)
		}
	}
	made, err := r.configMaps().Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: names,
			Annotations: map[string]string{noteImage: ref, noteImageDigest: key},
		},
		Data: map[string]string{recordFacts: string(text)},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return wrapError(ctx, "record an image", err)
	}
	if err == nil {
		r.recordView.wrote(made)
	}
	return r.sweepRecords(ctx)
}

func (r *Runtime) sweepRecords(ctx context.Context) error {
	list, err := r.imageRecords(ctx, "", "")
	if err != nil || len(list) <= maxRecords {
		return err
	}
	slices.SortFunc(list, func(a, b *corev1.ConfigMap) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	for _, old := range list[:len(list)-maxRecords] {
		if err := r.configMaps().Delete(ctx, old.Name, metav1.DeleteOptions{}); err != nil && !isNotFound(err) {
			return wrapError(ctx, "remove the record of an image", err)
		}
	}
	return nil
}

// hash makes a text of any length the value of a label.
func hash(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:40] }
