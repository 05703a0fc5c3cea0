#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>

namespace penstock {

// Deleter for OpenSSL objects, by their own free function.
template <auto kFree>
struct OpenSslFree {
  template <class T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};

using BioPtr = std::unique_ptr<BIO, OpenSslFree<BIO_free>>;
using CertificatePtr = std::unique_ptr<X509, OpenSslFree<X509_free>>;
using PrivateKeyPtr = std::unique_ptr<EVP_PKEY, OpenSslFree<EVP_PKEY_free>>;

}  // namespace penstock
