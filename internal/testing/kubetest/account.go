package kubetest

import (
	"context"
	"os"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientapi "k8s.io/client-go/tools/clientcmd/api"
)

// StorageClass is a class whose volumes are folders of this machine, which all nodes see.
const StorageClass = "folders"

// StorageClass creates that class.
func (c *Cluster) StorageClass() {
	c.tb.Helper()
	_, err := c.Client.StorageV1().StorageClasses().Create(context.Background(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: StorageClass}, Provisioner: "kubernetes.io/host-path",
	}, metav1.CreateOptions{})
	if err != nil {
		c.tb.Fatal(err)
	}
}

// Account creates a namespace that permits Pods of the standard "baseline", the StorageClass,
// and an account that may do nothing but what the rules allow in that namespace. It returns
// how to reach the cluster as that account.
func (c *Cluster) Account(namespace string, rules []rbacv1.PolicyRule) *rest.Config {
	c.tb.Helper()
	core, ctx, name := c.Client.CoreV1(), context.Background(), metav1.ObjectMeta{Name: "codehub"}
	must := func(_ any, err error) {
		c.tb.Helper()
		if err != nil {
			c.tb.Fatal(err)
		}
	}
	must(core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{
		"pod-security.kubernetes.io/enforce": "baseline",
	}}}, metav1.CreateOptions{}))
	c.StorageClass()
	must(core.ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: name}, metav1.CreateOptions{}))
	must(c.Client.RbacV1().Roles(namespace).Create(ctx, &rbacv1.Role{ObjectMeta: name, Rules: rules}, metav1.CreateOptions{}))
	must(c.Client.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: name,
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name.Name, Namespace: namespace}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name.Name},
	}, metav1.CreateOptions{}))
	seconds := int64(24 * 3600) // a soak takes hours
	token, err := core.ServiceAccounts(namespace).CreateToken(ctx, name.Name, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	must(token, err)
	config := rest.AnonymousClientConfig(c.Config)
	config.BearerToken = token.Status.Token
	return config
}

// WriteKubeconfig writes a file that says how to reach the cluster, and returns its path.
func (c *Cluster) WriteKubeconfig(config *rest.Config) string {
	c.tb.Helper()
	path := filepath.Join(c.tb.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientapi.Config{
		Clusters:       map[string]*clientapi.Cluster{"it": {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos:      map[string]*clientapi.AuthInfo{"it": {Token: config.BearerToken}},
		Contexts:       map[string]*clientapi.Context{"it": {Cluster: "it", AuthInfo: "it"}},
		CurrentContext: "it",
	}, path)
	if err != nil {
		c.tb.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		c.tb.Fatal(err)
	}
	return path
}
